"""Boxes covered by other boxes: the geometry of reading one layout of a tensor from another. Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from closeranks.checkpoint.box_table import Boxes, Ints

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


class Pieces(NamedTuple):
    """Boxes that are taken out of sources and put into needs, as columns of equal length."""

    source: Ints
    need: Ints
    source_offsets: Ints  # from the first element of the source
    need_offsets: Ints
    shape: Ints


_Row = tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # of Pieces


class Hole(NamedTuple):
    """A part of a need that no source holds."""

    need: int
    box: Box


def cover(sources: Boxes, ranks: Ints, needs: Boxes) -> Pieces | Hole:
    """Cover every element of every need exactly once; or the first need that cannot be covered.

    ``ranks`` of the sources ascend, and each element comes from the lowest rank that holds it. All boxes are of one
    tensor. A need without elements needs no piece. Time is linear in sources, needs and pieces where the sources form
    a grid, which every layout of ranks does; else it grows with the overlaps along the most divided dimension.
    """
    if len(sources.shapes) * len(needs.shapes) > _SMALL:
        grid = _Grid.of(sources)
        if grid is not None:
            return grid.cover(needs)
    found = _cover_few(_listed(sources), ranks.tolist(), _listed(needs))
    if isinstance(found, Hole):
        return found
    dimensions = needs.shapes.shape[1]
    columns = zip(*found, strict=True) if found else ([], [], [], [], [])
    source, need, *boxes = (np.array(column, np.int64) for column in columns)
    return Pieces(source, need, *(box.reshape(len(source), dimensions) for box in boxes))


def _listed(boxes: Boxes) -> list[Box]:
    rows = zip(boxes.offsets.tolist(), boxes.shapes.tolist(), strict=True)
    return [Box(tuple(offsets), tuple(shape)) for offsets, shape in rows]


def _cover_few(sources: Sequence[Box], ranks: Sequence[int], needs: Sequence[Box]) -> list[_Row] | Hole:
    first = {box: number for number, box in zip(range(len(sources) - 1, -1, -1), reversed(sources), strict=True)}
    shelf = None
    rows: list[_Row] = []
    for number, need in enumerate(needs):
        if 0 in need.shape:
            continue
        same = first.get(need)
        if same is not None and ranks[same] == ranks[0]:
            origin = (0,) * len(need.shape)
            rows.append((same, number, origin, origin, need.shape))
            continue
        shelf = shelf or _Shelf({box: source for box, source in first.items() if 0 not in box.shape})
        left = [need]
        for source, box in shelf.near(need):
            left = _take(left, (source, box), (number, need), rows)
            if not left:
                break
        if left:
            return Hole(number, left[0])
    return rows


def _take(left: list[Box], source: tuple[int, Box], need: tuple[int, Box], rows: list[_Row]) -> list[Box]:
    """Take from one source what is still left, into ``rows``; what is left then."""
    after: list[Box] = []
    for box in left:
        common = _common(box, source[1])
        if common is None:
            after.append(box)
            continue
        source_offsets = _minus(common.offsets, source[1].offsets)
        need_offsets = _minus(common.offsets, need[1].offsets)
        rows.append((source[0], need[0], source_offsets, need_offsets, common.shape))
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
    """Boxes of any arrangement, in the order of their starts along the most divided dimension."""

    def __init__(self, boxes: Mapping[Box, int]) -> None:
        dimensions = len(next(iter(boxes)).shape) if boxes else 0
        starts = [len({box.offsets[d] for box in boxes}) for d in range(dimensions)]
        self._dimension = starts.index(max(starts)) if starts else 0
        self._boxes = sorted(boxes.items(), key=lambda item: item[0].offsets[self._dimension :])
        spans = [self._span(box) for box, _ in self._boxes] if starts else []
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
    def of(cls, boxes: Boxes) -> _Grid | None:
        """The grid, or None where the boxes form none. Of equal boxes the first counts."""
        number = np.flatnonzero(boxes.shapes.all(axis=1))[::-1]  # backwards, so that the first is written last
        offsets, shapes = boxes.offsets[number], boxes.shapes[number]
        starts, ends, places = [], [], []
        for d in range(offsets.shape[1]):
            start, at, place = np.unique(offsets[:, d], return_index=True, return_inverse=True)
            size = shapes[at, d]
            if (shapes[:, d] != size[place]).any() or (start[:-1] + size[:-1] > start[1:]).any():
                return None
            starts.append(start)
            ends.append(start + size)
            places.append(place)
        dimensions = tuple(len(start) for start in starts)
        if not starts or math.prod(dimensions) > _SPARSE * len(number):
            return None
        cells = np.full(dimensions, -1, np.int64)
        cells[tuple(places)] = number
        return cls(starts, ends, cells)

    def cover(self, needs: Boxes) -> Pieces | Hole:
        """See the function of this name."""
        low, shapes = needs
        high, columns = low + shapes, range(low.shape[1])
        begin = np.stack([np.searchsorted(self._ends[d], low[:, d], "right") for d in columns], axis=1)
        count = np.stack([np.searchsorted(self._starts[d], high[:, d], "left") for d in columns], axis=1) - begin
        count = np.where(shapes.all(axis=1, keepdims=True), count.clip(0), 0)
        cells = count.prod(axis=1)
        row = np.repeat(np.arange(len(low)), cells)
        within = np.arange(len(row)) - np.repeat(np.cumsum(cells) - cells, cells)
        place = np.empty((len(row), len(columns)), np.int64)
        for d in reversed(columns):
            within, place[:, d] = np.divmod(within, count[row, d])
        place += begin[row]
        source = self._cells[tuple(place.T)]
        start = np.stack([self._starts[d][place[:, d]] for d in columns], axis=1)
        end = np.stack([self._ends[d][place[:, d]] for d in columns], axis=1)
        common = np.maximum(start, low[row])
        shape = np.minimum(end, high[row]) - common
        held = np.zeros(len(low), np.int64)
        np.add.at(held, row, np.where(source < 0, 0, shape.prod(axis=1)))
        short = np.flatnonzero(held != shapes.prod(axis=1))
        if len(short):
            number = int(short[0])
            return self._hole(number, Box(tuple(low[number].tolist()), tuple(shapes[number].tolist())))
        return Pieces(source, row, common - start, common - low[row], shape)

    def _hole(self, number: int, need: Box) -> Hole:
        """Where exactly the hole is: found by taking away, cell by cell."""
        left = [need]
        for place in np.argwhere(self._cells >= 0):
            starts = tuple(int(self._starts[d][p]) for d, p in enumerate(place))
            sizes = tuple(int(self._ends[d][p]) - start for (d, p), start in zip(enumerate(place), starts, strict=True))
            left = _take(left, (0, Box(starts, sizes)), (number, need), [])
        return Hole(number, left[0])
