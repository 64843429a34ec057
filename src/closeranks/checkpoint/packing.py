"""Cuts of an image into objects of a store: as they are in one object, or compressed in several of bounded size."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from closeranks.checkpoint.codec import compress
from closeranks.checkpoint.extents import Cut
from closeranks.checkpoint.format import Slice
from closeranks.checkpoint.image import DTYPES
from closeranks.checkpoint.stores.store import Buffer, OnPiece, Store

BATCH_BYTES: Final = 64 * 2**20  # of the image in one compressed object: bounds the memory that the frames take


class Place(NamedTuple):
    """Where the bytes of a cut are kept."""

    object: str
    begin: int
    stored: int
    codec: str


class Goal(NamedTuple):
    """A store and the beginning of the keys that a writer may create there."""

    store: Store
    stem: str  # of the image's key
    on_piece: OnPiece


def write_plain(goal: Goal, image: Buffer, cuts: Sequence[Cut]) -> list[Place]:
    """The bytes of the cuts one after the other in one object, which is the image itself when the cuts are all of it.

    Nothing is written when there is no cut. Raises StoreProblem.
    """
    key = f"{goal.stem}.safetensors"
    if cuts:
        goal.store.write(key, [image[begin:end] for begin, end in _runs(cuts)], goal.on_piece)
    places, begin = [], 0
    for piece in cuts:
        places.append(Place(key, begin, piece.length, ""))
        begin += piece.length
    return places


def write_packed(goal: Goal, image: Buffer, cuts: Sequence[Cut], items: Sequence[int], pool: Executor) -> list[Place]:
    """The cuts, compressed where that gains something, in objects of at most ``BATCH_BYTES`` of the image each.

    ``items`` are the item sizes of the cuts. Raises StoreProblem, and StoreRefused without the library.
    """
    places: list[Place] = []
    for number, batch in enumerate(_batches(cuts)):
        key = f"{goal.stem}.{number:05d}.zst"
        views = [image[piece.at : piece.at + piece.length] for piece in cuts[batch.start : batch.stop]]
        frames = list(pool.map(compress, views, items[batch.start : batch.stop]))
        parts, begin = [], 0
        for view, frame in zip(views, frames, strict=True):
            codec, data = ("", view) if frame is None else (frame[0], memoryview(frame[1]))
            places.append(Place(key, begin, len(data), codec))
            parts.append(data)
            begin += len(data)
        goal.store.write(key, parts, goal.on_piece)
    return places


def item_sizes(cuts: Sequence[Cut], slices: Sequence[Slice]) -> list[int]:
    """For every cut the item size of the tensor that it begins in; 1 for the header."""
    places = sorted((part.at, DTYPES[part.dtype]) for part in slices if part.length)
    begins = [at for at, _ in places]
    numbers = [bisect.bisect_right(begins, piece.at) - 1 for piece in cuts]
    return [places[number][1] if number >= 0 else 1 for number in numbers]


def _runs(cuts: Sequence[Cut]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for at, length in cuts:
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + length)
        else:
            runs.append((at, at + length))
    return runs


def _batches(cuts: Sequence[Cut]) -> Iterator[range]:
    begin, size = 0, 0
    for number, piece in enumerate(cuts):
        if number > begin and size + piece.length > BATCH_BYTES:
            yield range(begin, number)
            begin, size = number, 0
        size += piece.length
    if cuts:
        yield range(begin, len(cuts))
