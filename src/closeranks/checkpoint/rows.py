"""Where the bytes of a box lie in an image, as rows: runs of equal length at equal distances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from closeranks.checkpoint.format import Slice
from closeranks.checkpoint.image import DTYPES

_WITHOUT_LOCK_FROM_BYTES: Final = 2**15
"""numpy lets other threads run while it copies; below this the call costs more than the wait."""


class Rows(NamedTuple):
    """``times`` runs of ``run`` bytes, each ``stride`` bytes after the one before it."""

    at: int  # first byte in the image
    times: int
    stride: int
    run: int
    target_at: int  # first byte in the box; there the runs follow each other without gaps
    item_bytes: int

    def within(self, begin: int, end: int) -> range:
        """The rows that have bytes from ``begin`` to ``end`` of the image."""
        first = max(0, -(-(begin - self.at - self.run + 1) // self.stride))
        last = min(self.times, -(-(end - self.at) // self.stride))
        return range(first, max(first, last))

    @property
    def end(self) -> int:
        """The byte after the last row."""
        return self.at + (self.times - 1) * self.stride + self.run


def rows_of(part: Slice, offsets: Sequence[int], shape: Sequence[int]) -> Iterator[Rows]:
    """The rows of a box of the slice; ``offsets`` count from the slice's own first element.

    Raises:
        ValueError: the box is not inside the slice.
    """
    _require_inside(part, offsets, shape)
    if 0 in shape:
        return
    item = DTYPES[part.dtype]
    strides = [math.prod(part.shape[axis + 1 :]) * item for axis in range(len(part.shape))]
    at = part.at + sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    run = item
    loops: list[tuple[int, int]] = []  # innermost first: how many times, at which distance
    for axis in reversed(range(len(shape))):
        count, stride = shape[axis], strides[axis]
        if not loops and stride == run:
            run *= count  # all further in is whole: the run goes on
        elif count > 1:
            if loops and loops[-1][1] * loops[-1][0] == stride:
                loops[-1] = (loops[-1][0] * count, loops[-1][1])
            else:
                loops.append((count, stride))
    count, stride = loops[0] if loops else (1, run)
    outer = [range(0, times * step, step) for times, step in reversed(loops[1:])]
    for number, places in enumerate(itertools.product(*outer)):
        yield Rows(at + sum(places), count, stride, run, number * count * run, item)


def _require_inside(part: Slice, offsets: Sequence[int], shape: Sequence[int]) -> None:
    fits = len(offsets) == len(shape) == len(part.shape) and all(
        begin >= 0 and size >= 0 and begin + size <= whole
        for begin, size, whole in zip(offsets, shape, part.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"box {tuple(shape)} at {tuple(offsets)} is not inside {part.name!r} of shape {part.shape}")


def scatter(rows: Rows, begin: int, data: memoryview, target: memoryview) -> None:
    """Copy what ``data``, the image from byte ``begin`` on, has of the rows to their places in the box's bytes."""
    end = begin + len(data)
    touched = rows.within(begin, end)
    whole = range(touched.start, touched.stop)
    while whole and rows.at + whole[0] * rows.stride < begin:
        whole = whole[1:]
    while whole and rows.at + whole[-1] * rows.stride + rows.run > end:
        whole = whole[:-1]
    for row in (*range(touched.start, whole.start), *range(whole.stop, touched.stop)):
        _copy_part(rows, row, begin, data, target)
    if len(whole) == 1:
        _copy_part(rows, whole[0], begin, data, target)
    elif whole:
        _copy_rows(rows, whole, begin, data, target)


def _copy_part(rows: Rows, row: int, begin: int, data: memoryview, target: memoryview) -> None:
    at = rows.at + row * rows.stride
    first, last = max(at, begin), min(at + rows.run, begin + len(data))
    target_at = rows.target_at + row * rows.run + first - at
    source = data[first - begin : last - begin]
    if last - first < _WITHOUT_LOCK_FROM_BYTES:
        target[target_at : target_at + last - first] = source
    else:
        np.frombuffer(target, np.uint8, last - first, target_at)[:] = np.frombuffer(source, np.uint8)


def _copy_rows(rows: Rows, whole: range, begin: int, data: memoryview, target: memoryview) -> None:
    kind = np.dtype(f"u{rows.item_bytes}")
    shape = (len(whole), rows.run // rows.item_bytes)
    target_at = rows.target_at + whole[0] * rows.run
    source_at = rows.at + whole[0] * rows.stride - begin
    source = np.ndarray(shape, kind, data, source_at, (rows.stride, rows.item_bytes))
    np.ndarray(shape, kind, target, target_at)[:] = source
