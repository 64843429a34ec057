"""From all homes of a checkpoint into live objects: read and checked beside them first, then taken over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from closeranks.checkpoint.problems import Mismatch
from closeranks.checkpoint.restore_plan import Need
from closeranks.checkpoint.restoring import Restored
from closeranks.checkpoint.restoring import restore as restore_bytes
from closeranks.train import restore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from closeranks.checkpoint.format import ShardIndex
    from closeranks.checkpoint.inventory import Home
    from closeranks.checkpoint.restore_plan import Point, Rules
    from closeranks.checkpoint.restoring import Progress
    from closeranks.checkpoint.stores.store import Buffer


class Target(NamedTuple):
    """What is to be filled: live objects by name, as they are given to ``capture``."""

    state: Mapping[str, Any]
    local: Mapping[str, Any]
    seat: int
    fit: restore.Rules = restore.Rules()


class Checked(NamedTuple):
    """A checkpoint that was read and fits; nothing live has changed."""

    incoming: restore.Incoming
    restored: Restored


def read_checked(
    homes: Sequence[Home], target: Target, rules: Rules | None = None, progress: Progress | None = None
) -> Checked:
    """Read all that the target needs from the newest usable point under the rules.

    Raises:
        NothingToRestore: no point is usable; the message has a reason for each.
        Mismatch: a sound checkpoint that does not fit the target.
        In both cases nothing live was changed.
    """
    incoming: list[restore.Incoming] = []

    def wanted(point: Point, indices: Mapping[int, ShardIndex]) -> tuple[Sequence[Need], Sequence[Buffer]]:
        generation = "" if point.generation is None else f", generation {point.generation}"
        where = f"step {point.step}{generation}"
        saved = restore.saved_of(indices.values(), target.seat, point.world, where)
        incoming[:] = [restore.needs_of(target.state, target.local, saved, target.fit)]
        needs = [
            Need(
                reader=target.seat,
                name=leaf.name,
                dtype=leaf.dtype,
                global_shape=leaf.global_shape,
                offsets=leaf.offsets,
                shape=leaf.shape,
            )
            for leaf in incoming[0].needs
        ]
        return needs, incoming[0].targets

    restored = restore_bytes(homes, wanted, rules, progress)
    if not incoming:
        raise Mismatch(f"step {restored.point.step}: nothing was compared")
    incoming[0].prepare()
    return Checked(incoming[0], restored)
