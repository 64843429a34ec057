"""One writer's image into a store: digests, reuse of what an earlier generation has, and one durable write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import msgspec

from closeranks.checkpoint import digests
from closeranks.checkpoint.arena import Filled
from closeranks.checkpoint.extents import CHUNK_BYTES, Cut, cut, known
from closeranks.checkpoint.format import FORMAT, Extent, ShardIndex
from closeranks.checkpoint.image import image_key
from closeranks.checkpoint.problems import SaveFailed
from closeranks.checkpoint.stores.store import Buffer, Store

Progress = Callable[[str, int, int], None]
"""Called with the stage, the bytes done and the bytes in all; from any thread, but never from two at once."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How images are written."""

    chunk_bytes: int = CHUNK_BYTES
    xxh3: bool = True
    blake3: bool = True
    codec: str = ""  # "zstd" compresses what gains by it
    incremental: bool = True
    full_every: int = 32  # saves: so many generations at most depend on one object
    threads: int = 4


class Previous(NamedTuple):
    """The writer's shard in an alive generation, whose unchanged extents a save may refer to."""

    generation: int
    index: ShardIndex
    depth: int = 0  # incremental generations since the last whole one, this one included


class Written(NamedTuple):
    """What a save did. The index is not published yet."""

    index: ShardIndex
    bases: tuple[int, ...]  # the generation that keeps the reused extents alive; empty when all was written
    written_bytes: int  # in the store
    reused_bytes: int  # of the image
    digest_s: float
    write_s: float
