"""The two digests of image bytes. Both release the interpreter lock while they run: few large calls, never many small.

xxh3_128 finds accidents at the speed of memory; BLAKE3 also finds intent.
"""

from __future__ import annotations

from typing import Protocol

import blake3 as _blake3
import xxhash

from closeranks.checkpoint.stores.store import Buffer


class Digest(Protocol):
    """A digest of bytes that come one after the other."""

    def update(self, data: Buffer, /) -> object:
        """Take the next bytes; they are not kept."""
        ...

    def hexdigest(self) -> str:
        """Of all bytes so far."""
        ...


def begun(kind: str) -> Digest:
    """A digest of no bytes yet; ``kind`` is "xxh3" or "blake3"."""
    return xxhash.xxh3_128() if kind == "xxh3" else _blake3.blake3()


def xxh3(data: Buffer | bytes) -> str:
    """xxh3_128 of the bytes, 32 hex digits."""
    return xxhash.xxh3_128(data).hexdigest()


def blake3(data: Buffer | bytes) -> str:
    """BLAKE3 of the bytes, 64 hex digits."""
    return _blake3.blake3(data).hexdigest()
