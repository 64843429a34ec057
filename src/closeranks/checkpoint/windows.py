"""An extent in windows: each is read, digested and handed on while the processor's cache holds it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from closeranks.checkpoint.rows import Rows
from closeranks.checkpoint.stores.store import Buffer

WINDOW_BYTES: Final = 2**20
DIRECT_FROM_BYTES: Final = 2**17  # shorter runs are read together and copied: a read of their own would cost more

Wanted = tuple[Rows, Buffer]  # bytes of the image, and the target that gets them


class Window(NamedTuple):
    """A run of image bytes that is read at once."""

    at: int  # first byte in the image
    length: int
    target: Buffer | None  # where it is read to, a part of a target; None: to scratch
    others: tuple[Wanted, ...]  # what is to be copied out of it


def windows(
    begin: int, end: int, wanted: Sequence[Wanted], window_bytes: int, direct_from_bytes: int
) -> Iterator[Window]:
    """The image from one byte to another in order and without gaps, in windows of at most ``window_bytes``.

    Where ``direct_from_bytes`` or more belong to one target without gaps, they are read to their place.
    """
    ordered = sorted(wanted, key=lambda one: one[0].at)
    active: list[int] = []  # those that may have bytes in the window
    waiting = 0
    for first, last, direct in _runs(begin, end, ordered, direct_from_bytes):
        for at in range(first, last, window_bytes):
            stop = min(at + window_bytes, last)
            while waiting < len(ordered) and ordered[waiting][0].at < stop:
                active.append(waiting)
                waiting += 1
            active = [number for number in active if ordered[number][0].end > at]
            target = None if direct is None else _part(ordered[direct], at, stop)
            others = tuple(ordered[number] for number in active if number != direct)
            yield Window(at, stop - at, target, others)


def _runs(begin: int, end: int, ordered: Sequence[Wanted], least: int) -> Iterator[tuple[int, int, int | None]]:
    """First byte, the byte after the last, and the number of the target that all of it belongs to."""
    at = begin
    for number, (rows, _) in enumerate(ordered):
        first, last = max(at, rows.at), min(end, rows.end)
        if rows.times == 1 and last - first >= least:
            if at < first:
                yield at, first, None
            yield first, last, number
            at = last
    if at < end:
        yield at, end, None


def _part(wanted: Wanted, at: int, stop: int) -> Buffer:
    rows, target = wanted
    shift = rows.target_at - rows.at
    return target[at + shift : stop + shift]
