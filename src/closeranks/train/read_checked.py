"""From the homes of checkpoints into scratch memory, for one reader: everything is read, checked, and fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from closeranks.checkpoint.restore_plan import Need
from closeranks.checkpoint.restoring import restore
from closeranks.train.restore import Incoming, Rules, Saved, needs_of, saved_of

if TYPE_CHECKING:
    from closeranks.checkpoint.format import ShardIndex
    from closeranks.checkpoint.inventory import Home
    from closeranks.checkpoint.restore_plan import Point
    from closeranks.checkpoint.restore_plan import Rules as PlanRules
    from closeranks.checkpoint.restoring import Progress, Restored

RANDOM: Final = "random"  # among what is local: taken and given back without being asked for


class Reader(NamedTuple):
    """Who reads, and into what."""

    state: Mapping[str, Any]
    local: Callable[[int, frozenset[str]], Mapping[str, Any]]
    """Given the number of writers and the names that the checkpoint has: what is local here."""
    seat: int
    rules: Rules = Rules()


def read_checked(
    homes: Sequence[Home], reader: Reader, which: PlanRules, progress: Progress | None = None
) -> tuple[Incoming, Restored]:
    """Read the newest point under the rules that can be read as a whole; nothing live is changed.

    What is left to do: ``load_foreign`` and ``finish`` of what is returned.

    Raises:
        NothingToRestore: no point is usable; the message has a reason for each.
        Mismatch: the newest usable one does not fit.
    """
    found: list[Incoming] = []

    def wanted(point: Point, indices: Mapping[int, ShardIndex]) -> tuple[Sequence[Need], Sequence[memoryview]]:
        where = (
            f"step {point.step}" if point.generation is None else f"generation {point.generation} (step {point.step})"
        )
        saved = saved_of(indices.values(), reader.seat, point.world, where)
        local = reader.local(point.world, frozenset((saved.local or {}).get("values", {})))
        found[:] = [needs_of(reader.state, local, _only_wanted(saved, local), reader.rules)]
        needs = [Need(reader=reader.seat, **leaf._asdict()) for leaf in found[0].needs]
        return needs, found[0].targets

    restored = restore(homes, wanted, which, progress)
    found[0].prepare()
    return found[0], restored


def _only_wanted(saved: Saved, local: Mapping[str, Any]) -> Saved:
    """Random state that nobody asks for is not unexpected."""
    own = saved.local or {}
    values = {name: one for name, one in own.get("values", {}).items() if name != RANDOM or name in local}
    return saved._replace(local={**own, "values": values})
