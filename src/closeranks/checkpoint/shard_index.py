"""A ShardIndex as bytes: one line of JSON, and one line with the BLAKE3 of the first. And when one is believed.

Nothing in an index is used before it was checked here: whoever reads by it allocates and copies by its numbers.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from closeranks.checkpoint.codec import CODECS
from closeranks.checkpoint.extents import EXTENT_LIMIT_BYTES
from closeranks.checkpoint.format import DATA_PREFIX, Extent, ShardIndex, Slice
from closeranks.checkpoint.image import DTYPES, IMAGE_LIMIT_BYTES, box_problem
from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.sealed_json import decoded, sealed
from closeranks.checkpoint.stores.keys import checked_key

INDEX_LIMIT_BYTES: Final = 2**30  # two million extents; more is not read into memory
_STORED_LIMIT_BYTES: Final = 2 * EXTENT_LIMIT_BYTES
_HEX: Final = re.compile(r"[0-9a-f]*", re.ASCII)
_XXH3_DIGITS, _BLAKE3_DIGITS = 32, 64


def encode_index(index: ShardIndex) -> bytes:
    """The bytes of the index's object: the same for the same index."""
    return sealed(index)


def decode_index(data: bytes, where: str) -> ShardIndex:
    """The index in these bytes, when it is whole and its numbers agree. ``where`` is its key, for the message.

    Raises:
        StoreRefused: a newer version wrote it.
        Damaged: its digest is missing or another one, or its numbers contradict each other.
    """
    index = decoded(data, ShardIndex, where, "a shard index", lambda problem: _damaged(where, problem))
    problem = index_problem(index)
    if problem:
        raise _damaged(where, problem)
    return index


def index_problem(index: ShardIndex) -> str:
    """Why an index cannot be true, in words; empty when its numbers agree with each other."""
    if not 0 < index.image_bytes <= IMAGE_LIMIT_BYTES or index.writer < 0:
        return f"an image of {index.image_bytes} bytes by writer {index.writer}"
    return _slices_problem(index) or _extents_problem(index)


def _slices_problem(index: ShardIndex) -> str:
    end, seen = 0, set()
    for part in sorted(index.slices, key=lambda part: (part.at, part.length)):
        problem = _slice_problem(part)
        if not problem and (part.at < end or part.at + part.length > index.image_bytes):
            problem = f"bytes {part.at} to {part.at + part.length} overlap others or lie outside of the image"
        box = (part.name, part.offsets, part.shape)
        if not problem and box in seen:
            problem = "is there twice"
        if problem:
            return f"slice {part.name!r}: {problem}"
        seen.add(box)
        end = part.at + part.length
    return ""


def _slice_problem(part: Slice) -> str:
    problem = box_problem(part)
    if problem:
        return problem
    length = math.prod(part.shape) * DTYPES[part.dtype]
    return "" if length == part.length else f"expected {length} bytes for {part.shape}, got {part.length}"


def _extents_problem(index: ShardIndex) -> str:
    at = 0
    for extent in index.extents:
        problem = _extent_problem(extent)
        if not problem and extent.at != at:
            problem = f"expected it to begin at byte {at}"
        if problem:
            return f"extent at byte {extent.at}: {problem}"
        at += extent.length
    return "" if at == index.image_bytes else f"the extents end at byte {at}, the image at {index.image_bytes}"


def _extent_problem(extent: Extent) -> str:
    if not 0 < extent.length <= EXTENT_LIMIT_BYTES or not 0 < extent.stored <= _STORED_LIMIT_BYTES:
        return f"{extent.stored} bytes that hold {extent.length}: expected 1 to {EXTENT_LIMIT_BYTES}"
    if extent.codec not in CODECS:
        return f"codec {extent.codec!r} is not one of {CODECS}; a newer version may know it"
    if not extent.codec and extent.stored != extent.length:
        return f"{extent.stored} bytes that hold {extent.length} without a codec"
    if extent.begin < 0 or not is_data_key(extent.object):
        return f"byte {extent.begin} of {extent.object[:200]!r} is no place for data"
    if not extent.xxh3 and not extent.blake3:
        return "it has no digest, so nothing can tell whether its bytes are right"
    for digest, digits in ((extent.xxh3, _XXH3_DIGITS), (extent.blake3, _BLAKE3_DIGITS)):
        if digest and (len(digest) != digits or not _HEX.fullmatch(digest)):
            return f"{digest!r} is no digest"
    return ""


def is_data_key(key: str) -> bool:
    """Whether a store keeps data under this key, which came from outside."""
    try:
        return checked_key(key, "").startswith(DATA_PREFIX)
    except StoreProblem:
        return False


def _damaged(where: str, problem: Any) -> Damaged:
    return Damaged(f"{where}: {problem}; restore from another home or an earlier generation", object_key=where)
