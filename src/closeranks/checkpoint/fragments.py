"""Fragments of objects: their names, their digests, and how an object is cut into stripes of blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import xxhash

from closeranks.checkpoint.erasure import BLOCKS_MAX, Bytes
from closeranks.checkpoint.problems import Damaged
from closeranks.checkpoint.stores.store import Buffer

BLOCK_BYTES: Final = 2 * 2**20
_MAGIC: Final = b"crf1"
HEADER_BYTES: Final = len(_MAGIC) + 16  # magic, xxh3_128 of the name and the block
_NAME: Final = re.compile(r"(.+)\.f-(\d{1,16})-(\d{1,3})-(\d{1,3})-(\d{1,10})-(\d{1,3})")


class Code(NamedTuple):
    """How an object is cut."""

    object_bytes: int
    data: int
    parity: int

    @property
    def stripes(self) -> int:
        """How many; an empty object has one as well."""
        return max(1, -(-self.object_bytes // self.stripe_bytes))

    @property
    def stripe_bytes(self) -> int:
        """Bytes of the object in every stripe but the last."""
        return self.data * BLOCK_BYTES

    def stripes_of(self, begin: int, length: int) -> range:
        """Those that have some of these bytes."""
        return range(begin // self.stripe_bytes, -(-(begin + length) // self.stripe_bytes))

    def block_bytes(self, stripe: int) -> int:
        """Of every block of that stripe; the last data blocks of the last one may be padded with zeros."""
        left = self.object_bytes - stripe * self.stripe_bytes
        return min(BLOCK_BYTES, -(-left // self.data))


class Fragment(NamedTuple):
    """One block of one stripe of one object."""

    key: str
    code: Code
    stripe: int
    block: int

    @property
    def name(self) -> str:
        """Its key at a peer."""
        code = self.code
        return f"{self.key}.f-{code.object_bytes}-{code.data}-{code.parity}-{self.stripe}-{self.block}"


def fragment_of(name: str) -> Fragment | None:
    """The fragment under this key of a peer; None: it is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    key, (object_bytes, data, parity, stripe, block) = found[1], map(int, found.groups()[1:])
    code = Code(object_bytes, data, parity)
    if data < 1 or data + parity > BLOCKS_MAX or block >= data + parity or stripe >= code.stripes:
        return None
    return Fragment(key, code, stripe, block)


def prefix_of(key: str) -> str:
    """What the names of an object's fragments begin with."""
    return f"{key}.f-"


def header_of(name: str, block: Buffer) -> bytes:
    """What stands before the block: a fragment that lies under another name is no good either."""
    return _MAGIC + _digest(name, block)


def checked_block(name: str, data: bytes, block_bytes: int) -> Bytes:
    """The block of a fragment that was read.

    Raises:
        Damaged: these are not the bytes that were written under this name.
    """
    block = memoryview(data)[HEADER_BYTES:]
    if len(block) != block_bytes or data[:HEADER_BYTES] != header_of(name, block):
        raise Damaged(
            f"{name}: expected a block of {block_bytes:,} bytes with its digest, got other bytes", object_key=name
        )
    return np.frombuffer(block, np.uint8)


class Source:
    """An object in parts, seen as one run of bytes."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._views = [np.frombuffer(part.cast("B"), np.uint8) for part in parts if part.nbytes]
        self._ends = np.cumsum([len(view) for view in self._views])
        self.length = int(self._ends[-1]) if self._views else 0

    def block(self, begin: int, length: int) -> Bytes:
        """So many bytes from there on, as they lie in memory where that is possible; zeros beyond the end."""
        first = int(np.searchsorted(self._ends, begin, side="right"))
        if first < len(self._views) and begin + length <= self._ends[first]:
            at = begin - int(self._ends[first]) + len(self._views[first])
            return self._views[first][at : at + length]
        block, at = np.zeros(length, np.uint8), 0
        while at < length and first < len(self._views):
            rest = self._views[first][begin + at - int(self._ends[first]) + len(self._views[first]) :]
            count = min(len(rest), length - at)
            block[at : at + count] = rest[:count]
            at += count
            first += 1
        return block


def _digest(name: str, block: Buffer) -> bytes:
    state = xxhash.xxh3_128(name.encode())
    state.update(block)
    return state.digest()
