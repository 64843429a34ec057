"""An extent in windows: each is read, digested and handed on while the processor's cache holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from closeranks.checkpoint.rows import Rows
from closeranks.checkpoint.stores.store import Buffer

WINDOW_BYTES: Final = 2**19
"""Measured on a virtual AMD EPYC: 256 KiB to 1 MiB are equal. Through such a window a verified read costs no more
processor time than a raw one to its place: the kernel copies to cold memory at a third of the speed at which it copies
to the cache.
"""

Wanted = tuple[Rows, Buffer]  # bytes of the image, and the target that gets them


class Window(NamedTuple):
    """A run of image bytes that is read at once."""

    at: int  # first byte in the image
    length: int
    wanted: tuple[Wanted, ...]  # what may have bytes in it


def windows(begin: int, end: int, wanted: Sequence[Wanted], window_bytes: int) -> Iterator[Window]:
    """The image from one byte to another in order and without gaps, in windows of at most ``window_bytes``."""
    ordered = sorted(wanted, key=lambda one: one[0].at)
    active: list[Wanted] = []
    waiting = 0
    for at in range(begin, end, window_bytes):
        stop = min(at + window_bytes, end)
        while waiting < len(ordered) and ordered[waiting][0].at < stop:
            active.append(ordered[waiting])
            waiting += 1
        active = [one for one in active if one[0].end > at]
        yield Window(at, stop - at, tuple(active))
