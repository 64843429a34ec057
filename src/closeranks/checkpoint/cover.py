"""Boxes covered by other boxes: the geometry of reading one layout of a tensor from another. Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_SMALL = 64  # pairs of boxes: below that, plain Python is faster than arrays
_SPARSE = 4  # cells of a grid for each box in it, at most


class Box(NamedTuple):
    """A part of a tensor, in elements."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """As a slice: ``[0:128, 64:96]``."""
        spans = (f"{start}:{start + size}" for start, size in zip(self.offsets, self.shape, strict=True))
        return f"[{', '.join(spans)}]"


class Piece(NamedTuple):
    """A box that is taken out of one source and put into one need."""

    source: int
    need: int
    source_offsets: tuple[int, ...]  # from the first element of the source
    need_offsets: tuple[int, ...]
    shape: tuple[int, ...]


class Hole(NamedTuple):
    """A part of a need that no source holds."""

    need: int
    box: Box


def cover(sources: Sequence[Box], ranks: Sequence[int], needs: Sequence[Box]) -> list[Piece] | Hole:
    """Cover every element of every need exactly once; or the first need that cannot be covered.

    ``ranks`` of the sources ascend, and each element comes from the lowest rank that holds it. All boxes are of one
    tensor. A need without elements needs no piece. Time is linear in sources, needs and pieces where the sources form
    a grid, which every layout of ranks does; else it grows with the overlaps along the most divided dimension.
    """
    if not sources:
        return next((Hole(number, need) for number, need in enumerate(needs) if 0 not in need.shape), [])
    first = {box: number for number, box in zip(range(len(sources) - 1, -1, -1), reversed(sources), strict=True)}
    pieces: list[Piece] = []
    rest: list[int] = []
    for number, need in enumerate(needs):
        same = first.get(need)
        if 0 in need.shape:
            continue
        if same is not None and ranks[same] == ranks[0]:
            origin = (0,) * len(need.shape)
            pieces.append(Piece(same, number, origin, origin, need.shape))
        else:
            rest.append(number)
    found = _cover_rest(first, needs, rest) if rest else []
    if isinstance(found, Hole):
        return found
    return pieces + found


def _cover_rest(first: Mapping[Box, int], needs: Sequence[Box], rest: Sequence[int]) -> list[Piece] | Hole:
    boxes = {box: number for box, number in first.items() if 0 not in box.shape}
    if not boxes:
        return Hole(rest[0], needs[rest[0]])
    grid = _Grid.of(boxes) if len(boxes) * len(rest) > _SMALL else None
    if grid is not None:
        return grid.cover(needs, rest)
    shelf = _Shelf(boxes)
    pieces: list[Piece] = []
    for number in rest:
        left = [needs[number]]
        for source, box in shelf.near(needs[number]):
            left = _take(left, Piece(source, number, box.offsets, needs[number].offsets, box.shape), pieces)
            if not left:
                break
        if left:
            return Hole(number, left[0])
    return pieces


def _take(left: list[Box], whole: Piece, pieces: list[Piece]) -> list[Box]:
    """Take from one source what is still left, into ``pieces``; what is left then."""
    after: list[Box] = []
    for box in left:
        common = _common(box, Box(whole.source_offsets, whole.shape))
        if common is None:
            after.append(box)
            continue
        pieces.append(
            whole._replace(
                source_offsets=_minus(common.offsets, whole.source_offsets),
                need_offsets=_minus(common.offsets, whole.need_offsets),
                shape=common.shape,
            )
        )
        after.extend(_without(box, common))
    return after


def _minus(these: tuple[int, ...], those: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(these, those, strict=True))


def _common(one: Box, other: Box) -> Box | None:
    """The elements that two boxes share."""
    starts = tuple(map(max, one.offsets, other.offsets))
    sizes = tuple(
        min(a + m, b + n) - start
        for a, m, b, n, start in zip(one.offsets, one.shape, other.offsets, other.shape, starts, strict=True)
    )
    return Box(starts, sizes) if all(size > 0 for size in sizes) else None


def _without(box: Box, part: Box) -> Iterator[Box]:
    """What is left of a box without a part of it: at most two boxes a dimension."""
    offsets, shape = list(box.offsets), list(box.shape)
    for d in range(len(shape)):
        end, part_end = offsets[d] + shape[d], part.offsets[d] + part.shape[d]
        for start, stop in ((offsets[d], part.offsets[d]), (part_end, end)):
            if stop > start:
                yield Box((*offsets[:d], start, *offsets[d + 1 :]), (*shape[:d], stop - start, *shape[d + 1 :]))
        offsets[d], shape[d] = part.offsets[d], part.shape[d]


class _Shelf:
    """Boxes of any arrangement, in the order of their starts along one dimension."""

    def __init__(self, boxes: Mapping[Box, int]) -> None:
        shapes = [len({box.offsets[d] for box in boxes}) for d in range(len(next(iter(boxes)).shape))]
        self._dimension = shapes.index(max(shapes)) if shapes else 0
        self._boxes = sorted(boxes.items(), key=lambda item: item[0].offsets[self._dimension :])
        if shapes:
            spans = [self._span(box) for box, _ in self._boxes]
            self._starts = [start for start, _ in spans]
            self._ends = list(accumulate((end for _, end in spans), max))

    def _span(self, box: Box) -> tuple[int, int]:
        start = box.offsets[self._dimension]
        return start, start + box.shape[self._dimension]

    def near(self, need: Box) -> list[tuple[int, Box]]:
        """Those that may share elements with the need, the nearest source first."""
        if not need.shape:
            return [(number, box) for box, number in self._boxes]
        start, end = self._span(need)
        found = self._boxes[bisect.bisect_right(self._ends, start) : bisect.bisect_left(self._starts, end)]
        return sorted((number, box) for box, number in found)


class _Grid:
    """Boxes that are cells of one grid, and so share no element."""

    def __init__(self, starts: list[Ints], ends: list[Ints], cells: Ints) -> None:
        self._starts = starts  # for each dimension, ascending
        self._ends = ends
        self._cells = cells  # number of the source, -1 where there is none

    @classmethod
    def of(cls, boxes: Mapping[Box, int]) -> _Grid | None:
        """The grid, or None where the boxes form none."""
        offsets = np.array([box.offsets for box in boxes], np.int64)
        shapes = np.array([box.shape for box in boxes], np.int64)
        starts, ends, places = [], [], []
        for d in range(offsets.shape[1]):
            start, at, place = np.unique(offsets[:, d], return_index=True, return_inverse=True)
            end = start + shapes[at, d]
            if (shapes[:, d] != shapes[at, d][place]).any() or (end[:-1] > start[1:]).any():
                return None
            starts.append(start)
            ends.append(end)
            places.append(place)
        dimensions = tuple(len(start) for start in starts)
        if math.prod(dimensions) > _SPARSE * len(boxes):
            return None
        cells = np.full(dimensions, -1, np.int64)
        cells[tuple(places)] = list(boxes.values())
        return cls(starts, ends, cells)

    def cover(self, needs: Sequence[Box], rest: Sequence[int]) -> list[Piece] | Hole:
        """The pieces for those needs whose numbers are ``rest``."""
        low = np.array([needs[number].offsets for number in rest], np.int64)
        high = low + np.array([needs[number].shape for number in rest], np.int64)
        columns = range(low.shape[1])
        begin = np.stack([np.searchsorted(self._ends[d], low[:, d], "right") for d in columns], axis=1)
        count = np.stack([np.searchsorted(self._starts[d], high[:, d], "left") for d in columns], axis=1) - begin
        number = count.clip(0).prod(axis=1)
        if (number == 0).any():
            return self._hole(needs, rest, int(np.argmax(number == 0)))
        row = np.repeat(np.arange(len(rest)), number)
        within = np.arange(len(row)) - np.repeat(np.cumsum(number) - number, number)
        place = np.empty((len(row), len(columns)), np.int64)
        for d in reversed(columns):
            within, place[:, d] = np.divmod(within, count[row, d])
        place += begin[row]
        source = self._cells[tuple(place.T)]
        start = np.stack([self._starts[d][place[:, d]] for d in columns], axis=1)
        end = np.stack([self._ends[d][place[:, d]] for d in columns], axis=1)
        common = np.maximum(start, low[row])
        shape = np.minimum(end, high[row]) - common
        held = np.bincount(row, np.where(source < 0, 0, shape.prod(axis=1)), len(rest))
        short = held != (high - low).prod(axis=1)
        if short.any():
            return self._hole(needs, rest, int(np.argmax(short)))
        return _pieces(source, np.asarray(rest, np.int64)[row], common - start, common - low[row], shape)

    def _hole(self, needs: Sequence[Box], rest: Sequence[int], row: int) -> Hole:
        """Where exactly the hole is: found by taking away, cell by cell."""
        left = [needs[rest[row]]]
        for place in np.argwhere(self._cells >= 0):
            starts = tuple(int(self._starts[d][p]) for d, p in enumerate(place))
            sizes = tuple(int(self._ends[d][p]) - starts[d] for d, p in enumerate(place))
            left = _take(left, Piece(0, rest[row], starts, needs[rest[row]].offsets, sizes), [])
        return Hole(rest[row], left[0])


def _pieces(*columns: Any) -> list[Piece]:
    source, need, *boxes = (column.tolist() for column in columns)
    return list(map(Piece._make, zip(source, need, *(map(tuple, box) for box in boxes), strict=True)))
