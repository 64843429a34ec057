"""Which checkpoint to restore, and which byte to read from where. Pure: ``plan_restore(inventory, needs, rules)``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from closeranks.checkpoint.box_table import (
    BoxTable,
    Ints,
    Numbering,
    by_number,
    first_of_equal,
    names_of,
    spelled,
    table_of,
)
from closeranks.checkpoint.cover import Hole, Pieces, cover
from closeranks.checkpoint.format import Slice

_HOME, _WRITER = attrgetter("home"), attrgetter("writer")
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
    """All needs as a table, and of each tensor those that differ."""

    numbering: Numbering
    table: BoxTable
    kind: Ints  # by tensor
    repeats: tuple[tuple[int, int], ...]
    distinct: list[Ints]  # rows of the table, by tensor


def plan_restore(inventory: Inventory, needs: Sequence[Need], rules: Rules | None = None) -> Plan | NoPlan:
    """The newest step of which every needed byte has a home, each byte from its nearest home; or why there is none.

    Of two points of one step the committed one is taken, of two such the later one. Linear in slices, needs and
    fetches.

    Raises:
        ValueError: two needs contradict each other about the whole tensor.
    """
    rules = rules or Rules()
    wanted = _wanted(needs)
    passed: list[Passed] = []
    for point in newest_first(inventory.points):
        found = ruled_out(point, rules) or _fetches(point, wanted)
        if not isinstance(found, str):
            return Plan(point=point, fetches=tuple(found), repeats=wanted.repeats, passed=tuple(passed))
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


def _wanted(needs: Sequence[Need]) -> _Wanted:
    numbering = Numbering(names_of(needs))
    table, _ = table_of((needs,), numbering)
    kind = table.kind[table.order[table.bounds[:-1]]]
    odd = np.flatnonzero(kind[table.tensor] != table.kind)
    if len(odd):
        number, kinds = int(odd[0]), by_number(numbering.kinds)
        expected, got = spelled(kinds[kind[table.tensor[number]]]), spelled(kinds[table.kind[number]])
        raise ValueError(
            f"need {number}, {needs[number].name}: expected {expected} as by other readers, got {got}; "
            "readers must agree about the whole tensor"
        )
    dimensions = [len(shape) for _, shape in by_number(numbering.kinds)]
    distinct: list[Ints] = []
    repeats: list[tuple[int, int]] = []
    for tensor in range(len(numbering.names)):
        rows = table.rows(tensor)
        if len(rows) > 1:
            first = first_of_equal(table.boxes(rows, dimensions[kind[tensor]]))
            again = first != np.arange(len(rows))
            repeats.extend(zip(rows[again].tolist(), rows[first[again]].tolist(), strict=True))
            rows = rows[~again]
        distinct.append(rows)
    return _Wanted(numbering, table, kind, tuple(sorted(repeats)), distinct)


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


def _fetches(point: Point, wanted: _Wanted) -> list[Fetch] | str:
    """Every read, or what is missing, in words."""
    names = wanted.numbering.names
    holdings = _distinct(point.holdings)
    table, place = table_of((holding.slices for holding in holdings), wanted.numbering)
    absent = np.flatnonzero(np.diff(table.bounds) == 0)
    if len(absent):
        return f"it does not hold {_some('tensor', [names[tensor] for tensor in absent])}"
    kinds = by_number(wanted.numbering.kinds)
    odd = np.flatnonzero(wanted.kind[table.tensor] != table.kind)
    if len(odd):
        tensor, kept = table.tensor[odd[0]], spelled(kinds[table.kind[odd[0]]])
        return f"{names[tensor]} is {kept} in it, and {spelled(kinds[wanted.kind[tensor]])} is needed"
    sources = _Sources.of(holdings, place)
    alike = _alike(wanted, table)
    fetches = [read for tensors in alike for read in _whole_slices(tensors, wanted, table, sources)]
    done = {tensor for tensors in alike for tensor in tensors.tolist()}
    for tensor, mine in enumerate(wanted.distinct):
        if tensor in done:
            continue
        rows, whole = table.rows(tensor), kinds[wanted.kind[tensor]][1]
        needs = wanted.table.boxes(mine, len(whole))
        found = cover(table.boxes(rows, len(whole)), sources.tier[rows], needs)
        if isinstance(found, Hole):
            return f"no home has {names[tensor]}{found.box} of {list(whole)}"
        fetches.extend(sources.fetches(rows, mine, found))
    return fetches


def _alike(wanted: _Wanted, table: BoxTable) -> list[Ints]:
    """Tensors with one slice and one need of the very same box, by their dimensions: most, where nothing is sharded."""
    single = (np.diff(table.bounds) == 1) & np.array([len(rows) == 1 for rows in wanted.distinct], bool)
    dimensions = np.array([len(shape) for _, shape in by_number(wanted.numbering.kinds)], np.int64)[wanted.kind]
    found = []
    for count in np.unique(dimensions[single]).tolist():
        tensors = np.flatnonzero(single & (dimensions == count))
        held = table.boxes(table.order[table.bounds[tensors]], count)
        needed = wanted.table.boxes(wanted.table.order[wanted.table.bounds[tensors]], count)
        same = (held.offsets == needed.offsets) & (held.shapes == needed.shapes) & (held.shapes > 0)
        found.append(tensors[same.all(axis=1)])
    return found


def _whole_slices(tensors: Ints, wanted: _Wanted, table: BoxTable, sources: _Sources) -> Iterator[Fetch]:
    """The reads of tensors that are alike."""
    rows, needs = table.order[table.bounds[tensors]], wanted.table.order[wanted.table.bounds[tensors]]
    dimensions = len(by_number(wanted.numbering.kinds)[wanted.kind[tensors[0]]][1]) if len(tensors) else 0
    shapes, each = table.boxes(rows, dimensions).shapes, np.arange(len(tensors))
    origin = np.zeros_like(shapes)
    return sources.fetches(rows, needs, Pieces(each, each, origin, origin, shapes))


class _Sources(NamedTuple):
    """Where the rows of the table of slices come from."""

    holdings: Sequence[Holding]
    holding: Ints  # number of the holding, by row
    number: Ints  # of the slice in it
    tier: Ints

    @classmethod
    def of(cls, holdings: Sequence[Holding], place: Ints) -> _Sources:
        """``place``: of the rows among all slices."""
        ends = np.cumsum([len(holding.slices) for holding in holdings])
        holding = np.searchsorted(ends, place, "right")
        number = place - np.concatenate(([0], ends))[holding]
        return cls(holdings, holding, number, np.array([holding.tier for holding in holdings], np.int64)[holding])

    def fetches(self, rows: Ints, needs: Ints, found: Pieces) -> Iterator[Fetch]:
        """The reads of one tensor, whose slices are in these rows."""
        row = rows[found.source]
        holdings = list(map(self.holdings.__getitem__, self.holding[row].tolist()))
        return map(
            Fetch,
            map(_HOME, holdings),
            map(_WRITER, holdings),
            self.number[row].tolist(),
            _tuples(found.source_offsets),
            needs[found.need].tolist(),
            _tuples(found.need_offsets),
            _tuples(found.shape),
        )


def _tuples(table: Ints) -> Iterable[tuple[int, ...]]:
    return zip(*table.T.tolist(), strict=True) if table.shape[1] else [()] * len(table)


def _distinct(holdings: Sequence[Holding]) -> list[Holding]:
    """The nearest first; of homes that have the same slices of a writer only the nearest."""
    kept: dict[int, list[Holding]] = {}
    for holding in sorted(holdings, key=lambda h: (h.tier, h.writer, h.home)):
        of_writer = kept.setdefault(holding.writer, [])
        if all(other.slices != holding.slices for other in of_writer):
            of_writer.append(holding)
    return sorted((h for of_writer in kept.values() for h in of_writer), key=lambda h: (h.tier, h.writer, h.home))
