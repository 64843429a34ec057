"""How images are written, and what a save may build on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from closeranks.checkpoint.extents import CHUNK_BYTES, CHUNK_LEAST_BYTES, CHUNK_LIMIT_BYTES
from closeranks.checkpoint.format import ShardIndex

Progress = Callable[[str, int, int], None]
"""Called with the stage, the bytes done and the bytes in all; from any thread, but never from two at once."""

THREADS: Final = max(1, min(4, os.cpu_count() or 1))


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How images are written."""

    chunk_bytes: int = CHUNK_BYTES
    xxh3: bool = True  # also what finds unchanged extents: without it every save is a whole one
    blake3: bool = True
    codec: str = ""  # "zstd" compresses what gains by it
    incremental: bool = True
    full_every: int = 32  # generations: at most so many depend on one object
    threads: int = THREADS

    def __post_init__(self) -> None:
        if not self.xxh3 and not self.blake3:
            raise ValueError("options: expected xxh3, blake3 or both, got neither: nothing could be checked later")
        if self.codec not in ("", "zstd"):
            raise ValueError(f'options: codec: expected "" or "zstd", got {self.codec!r}')
        if min(self.full_every, self.threads) < 1:
            raise ValueError("options: full_every and threads: expected at least 1")
        if not CHUNK_LEAST_BYTES <= self.chunk_bytes <= CHUNK_LIMIT_BYTES:
            bounds = f"{CHUNK_LEAST_BYTES} to {CHUNK_LIMIT_BYTES}"
            raise ValueError(f"options: chunk_bytes: expected {bounds}, got {self.chunk_bytes}")

    @property
    def may_reuse(self) -> bool:
        """Whether unchanged extents are looked for."""
        return self.incremental and self.xxh3


@dataclass(frozen=True, slots=True)
class Previous:
    """The writer's shard in an alive generation, whose unchanged extents a save may refer to."""

    generation: int
    index: ShardIndex
    depth: int = 0  # incremental generations since the last whole one, this one included
