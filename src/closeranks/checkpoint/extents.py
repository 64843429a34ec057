"""How an image is cut into extents, and which of them an earlier generation has already.

An extent that lies in one tensor begins at a multiple of ``chunk_bytes`` from the tensor's own first byte. So a tensor
that moves in the image, because another one came or grew, keeps its extents and their digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from closeranks.checkpoint.format import Extent, ShardIndex, Slice

CHUNK_BYTES: Final = 8 * 2**20
CHUNK_LEAST_BYTES: Final = 4096
CHUNK_LIMIT_BYTES: Final = 64 * 2**20
EXTENT_LIMIT_BYTES: Final = 128 * 2**20  # of a reader's scratch; holds the largest header and the largest chunk


class Cut(NamedTuple):
    """A run of image bytes that becomes an extent."""

    at: int
    length: int


def cut(slices: Iterable[Slice], image_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> tuple[Cut, ...]:
    """Extents of the image in ascending order, without gaps: the header alone, small tensors together, large ones cut.

    No extent but the header is longer than ``chunk_bytes``.

    Raises:
        ValueError: chunk_bytes is out of its bounds, or the slices do not fill the image.
    """
    if not CHUNK_LEAST_BYTES <= chunk_bytes <= CHUNK_LIMIT_BYTES:
        raise ValueError(f"chunk_bytes: expected {CHUNK_LEAST_BYTES} to {CHUNK_LIMIT_BYTES}, got {chunk_bytes}")
    places = sorted((part.at, part.length) for part in slices if part.length)
    begin = at = places[0][0] if places else image_bytes
    cuts = [Cut(0, begin)] if begin else []
    for place, length in places:
        if place != at:
            raise ValueError(f"a tensor begins at byte {place} of the image, the one before it ends at {at}")
        at = place + length
        if at - begin <= chunk_bytes:
            continue  # it fits to those before it
        if place > begin:
            cuts.append(Cut(begin, place - begin))
        begin = place
        while at - begin > chunk_bytes:
            cuts.append(Cut(begin, chunk_bytes))
            begin += chunk_bytes
        if length > chunk_bytes:  # the rest of a large tensor stays its own, whatever comes after it
            cuts.append(Cut(begin, at - begin))
            begin = at
    if at > begin:
        cuts.append(Cut(begin, at - begin))
    if at != image_bytes:
        raise ValueError(f"the tensors end at byte {at}, the image at {image_bytes}")
    return tuple(cuts)


def known(cuts: Sequence[Cut], digests: Sequence[str], previous: ShardIndex) -> tuple[Extent | None, ...]:
    """For every cut the extent of ``previous`` that has the same bytes, wherever it was there; None: changed.

    ``digests`` are the xxh3 of the cuts. What is returned is previous' value: its ``at`` is the old place.
    """
    have = {(extent.length, extent.xxh3): extent for extent in previous.extents if extent.xxh3}
    return tuple(have.get((piece.length, digest)) for piece, digest in zip(cuts, digests, strict=True))
