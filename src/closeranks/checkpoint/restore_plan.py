"""Which checkpoint to restore, and which byte to read from where. Pure: ``plan_restore(inventory, needs, rules)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from closeranks.checkpoint.cover import Box, Hole, cover
from closeranks.checkpoint.format import Slice

_NAME, _KIND, _BOX = attrgetter("name"), attrgetter("dtype", "global_shape"), attrgetter("offsets", "shape")
_NAMED = 3  # tensors that a reason names before it counts the rest


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Holding(_Value, frozen=True):
    """One home has the image of one writer."""

    home: str
    tier: int  # 0 is the nearest
    writer: int
    slices: tuple[Slice, ...]


class Point(_Value, frozen=True):
    """A state that training can go back to: what one attempt saved after one step, wherever its parts are now."""

    step: int
    generation: int | None  # None: not committed; it is in memory only
    holdings: tuple[Holding, ...]
    world: int  # writers
    attempt: str = ""
    group: str = ""  # "": all state
    trusted: bool = True
    verified: bool = False  # a restore drill read all of it


class Inventory(_Value, frozen=True):
    """All points that any home knows of, in any order."""

    points: tuple[Point, ...]


class Need(_Value, frozen=True, gc=False):
    """A box of a tensor that one reader wants."""

    reader: int
    name: str
    dtype: str
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class Rules(_Value, frozen=True):
    """Which points are considered."""

    trusted: bool = True  # only those taken while nothing was suspected
    verified: bool = False  # only those that a restore drill read
    step: int | None = None  # only this step
    generation: int | None = None  # only this one
    newest_step: int | None = None  # none after this step
    group: str = ""
    whole: bool = True  # every writer must have a home, since the small state of each seat is wanted too


class Fetch(msgspec.Struct, frozen=True, order=True, gc=False):
    """Read a box of a slice, put it into a box of a need. Offsets count elements from the first one of each."""

    home: str
    writer: int
    slice: int  # number in the writer's index
    slice_offsets: tuple[int, ...]
    need: int
    need_offsets: tuple[int, ...]
    shape: tuple[int, ...]


class Passed(_Value, frozen=True):
    """A newer point that was not chosen."""

    step: int
    generation: int | None
    reason: str

    def __str__(self) -> str:
        """In words."""
        name = "in memory only" if self.generation is None else f"generation {self.generation}"
        return f"step {self.step} ({name}): {self.reason}"


class Plan(_Value, frozen=True):
    """The point, and every read; the bytes of each need are read exactly once.

    Of equal needs (several readers, one box) only the first is fetched; ``repeats`` are (need, equal need before it).
    """

    point: Point
    fetches: tuple[Fetch, ...]
    repeats: tuple[tuple[int, int], ...] = ()
    passed: tuple[Passed, ...] = ()  # newest first


class NoPlan(_Value, frozen=True):
    """No point can be restored under the rules."""

    passed: tuple[Passed, ...]  # newest first

    @property
    def reason(self) -> str:
        """In words, for each point."""
        if not self.passed:
            return "no home knows of any checkpoint"
        return "; ".join(map(str, self.passed))


class _Wanted(NamedTuple):
    """What is needed of one tensor."""

    dtype: str
    global_shape: tuple[int, ...]
    needs: dict[Box, int]  # the number of the first need of each box


def plan_restore(inventory: Inventory, needs: Sequence[Need], rules: Rules | None = None) -> Plan | NoPlan:
    """The newest step of which every needed byte has a home, each byte from its nearest home; or why there is none.

    Of two points of one step the committed one is taken, of two such the later one. Linear in slices, needs and
    fetches.

    Raises:
        ValueError: two needs contradict each other about the whole tensor.
    """
    rules = rules or Rules()
    wanted, repeats = _by_tensor(needs)
    passed: list[Passed] = []
    for point in newest_first(inventory.points):
        found = ruled_out(point, rules) or _fetches(point, wanted)
        if not isinstance(found, str):
            return Plan(point=point, fetches=tuple(found), repeats=tuple(repeats), passed=tuple(passed))
        passed.append(Passed(step=point.step, generation=point.generation, reason=found))
    return NoPlan(passed=tuple(passed))


def newest_first(points: Sequence[Point]) -> list[Point]:
    """In the order in which they are tried."""

    def order(point: Point) -> tuple[int, int, str]:
        return point.step, -1 if point.generation is None else point.generation, point.attempt

    return sorted(points, key=order, reverse=True)


def without(inventory: Inventory, attempt: str, home: str, writer: int) -> Inventory:
    """The inventory after the image of this writer was found to be unusable in this home."""

    def lost(holding: Holding) -> bool:
        return (holding.home, holding.writer) == (home, writer)

    points = (
        msgspec.structs.replace(point, holdings=tuple(h for h in point.holdings if not lost(h)))
        if point.attempt == attempt
        else point
        for point in inventory.points
    )
    return Inventory(points=tuple(points))


def _by_tensor(needs: Sequence[Need]) -> tuple[dict[str, _Wanted], list[tuple[int, int]]]:
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(map(_NAME, needs)):
        numbers.setdefault(name, []).append(number)
    wanted: dict[str, _Wanted] = {}
    repeats: list[tuple[int, int]] = []
    for name, mine in numbers.items():
        first: dict[Box, int] = {}
        for number, need in zip(mine, map(needs.__getitem__, mine), strict=True):
            known = first.setdefault(Box(need.offsets, need.shape), number)
            if known != number:
                repeats.append((number, known))
        _require_agreement(name, mine, needs)
        wanted[name] = _Wanted(needs[mine[0]].dtype, needs[mine[0]].global_shape, first)
    return wanted, repeats


def _require_agreement(name: str, numbers: Sequence[int], needs: Sequence[Need]) -> None:
    kinds = list(map(_KIND, map(needs.__getitem__, numbers)))
    odd = next((place for place, kind in enumerate(kinds) if kind != kinds[0]), None)
    if odd is not None:
        (expected, expected_shape), (got, got_shape) = kinds[0], kinds[odd]
        raise ValueError(
            f"need {numbers[odd]}, {name}: expected {expected} {list(expected_shape)} as by other readers, "
            f"got {got} {list(got_shape)}; readers must agree about the whole tensor"
        )


def ruled_out(point: Point, rules: Rules) -> str:
    """Why the point is not considered at all; empty if it is."""
    if point.group != rules.group:
        return f"it holds {_part(point.group)}, not {_part(rules.group)}"
    if rules.generation is not None and point.generation != rules.generation:
        return f"generation {rules.generation} was asked for"
    if rules.step is not None and point.step != rules.step:
        return f"step {rules.step} was asked for"
    if rules.newest_step is not None and point.step > rules.newest_step:
        return f"it is newer than step {rules.newest_step}"
    if rules.trusted and not point.trusted:
        return "it is not trusted: corruption was suspected when it was taken"
    if rules.verified and not point.verified:
        return "no restore drill has verified it"
    homeless = sorted(set(range(point.world)) - {holding.writer for holding in point.holdings}) if rules.whole else []
    if homeless:
        return f"no home has the shard of {_some('writer', homeless)} (of {point.world})"
    return ""


def _part(group: str) -> str:
    return f"the part {group!r}" if group else "all state"


def _some(noun: str, of: Sequence[object]) -> str:
    named = ", ".join(map(str, of[:_NAMED]))
    more = f" and {len(of) - _NAMED} more" if len(of) > _NAMED else ""
    return f"{noun}{'s' if len(of) > 1 else ''} {named}{more}"


def _fetches(point: Point, wanted: Mapping[str, _Wanted]) -> list[Fetch] | str:
    """Every read, or what is missing, in words."""
    holdings = _distinct(point.holdings)
    rows = {name: _Rows([], [], []) for name in wanted}
    for holding in holdings:
        for number, piece in enumerate(holding.slices):
            found = rows.get(piece.name)
            if found is not None:
                found.holdings.append(holding)
                found.numbers.append(number)
                found.slices.append(piece)
    absent = [name for name, found in rows.items() if not found.slices]
    if absent:
        return f"it does not hold {_some('tensor', absent)}"
    fetches: list[Fetch] = []
    for name, want in wanted.items():
        problem = _cover(name, want, rows[name], fetches)
        if problem:
            return problem
    return fetches


def _distinct(holdings: Sequence[Holding]) -> list[Holding]:
    """The nearest first; of homes that have the same slices of a writer only the nearest."""
    kept: dict[int, list[Holding]] = {}
    for holding in sorted(holdings, key=lambda h: (h.tier, h.writer, h.home)):
        of_writer = kept.setdefault(holding.writer, [])
        if all(other.slices != holding.slices for other in of_writer):
            of_writer.append(holding)
    return sorted((h for of_writer in kept.values() for h in of_writer), key=lambda h: (h.tier, h.writer, h.home))


class _Rows(NamedTuple):
    """The slices of one tensor, those from the nearest homes first."""

    holdings: list[Holding]
    numbers: list[int]  # in the holding
    slices: list[Slice]


def _cover(name: str, want: _Wanted, rows: _Rows, fetches: list[Fetch]) -> str:
    """Add the reads of one tensor; the problem, if there is one."""
    for dtype, global_shape in map(_KIND, rows.slices):
        if dtype != want.dtype or global_shape != want.global_shape:
            needed = f"{want.dtype} {list(want.global_shape)}"
            return f"{name} is {dtype} {list(global_shape)} in it, and {needed} is needed"
    boxes = list(map(Box._make, map(_BOX, rows.slices)))
    found = cover(boxes, [holding.tier for holding in rows.holdings], list(want.needs))
    if isinstance(found, Hole):
        return f"no home has {name}{found.box} of {list(want.global_shape)}"
    numbers = list(want.needs.values())
    homes, writers = [h.home for h in rows.holdings], [h.writer for h in rows.holdings]
    fetches.extend(
        map(
            Fetch,
            map(homes.__getitem__, found.source),
            map(writers.__getitem__, found.source),
            map(rows.numbers.__getitem__, found.source),
            found.source_offsets,
            map(numbers.__getitem__, found.need),
            found.need_offsets,
            found.shape,
        )
    )
    return ""
