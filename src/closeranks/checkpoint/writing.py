"""One writer's image into a store: digests, reuse of what an earlier generation has, and one durable write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from closeranks.checkpoint import digests
from closeranks.checkpoint.arena import Filled
from closeranks.checkpoint.extents import CHUNK_BYTES, Cut, cut
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


@dataclass(frozen=True, slots=True)
class Previous:
    """The writer's shard in an alive generation, whose unchanged extents a save may refer to."""

    generation: int
    index: ShardIndex
    depth: int = 0  # incremental generations since the last whole one, this one included


@dataclass(frozen=True, slots=True)
class Written:
    """What a save did. The index is not published yet."""

    index: ShardIndex
    bases: tuple[int, ...]  # the generation that keeps the reused extents alive; empty when all was written
    written_bytes: int  # in the store
    reused_bytes: int  # of the image
    digest_s: float
    write_s: float


def seal_index(
    filled: Filled, attempt: str, writer: int, options: Options, progress: Progress | None = None
) -> ShardIndex:
    """The index of the image as memory homes keep it: one whole object, each extent with its fast digest."""
    cuts = cut(filled.slices, len(filled.image), options.chunk_bytes)
    key = image_key(attempt, writer)
    with ThreadPoolExecutor(options.threads, "closeranks-digest") as pool:
        found = _digested(pool, digests.xxh3, filled.image, cuts, _Counter("digest", len(filled.image), progress))
        extents = [_plain(piece, key, piece.at, fast=fast.result()) for piece, fast in zip(cuts, found, strict=True)]
    return _index(filled, attempt, writer, extents)


def write_shard(  # noqa: PLR0913, PLR0917 -- where to, the two names of the shard, its bytes, and how
    store: Store,
    attempt: str,
    writer: int,
    filled: Filled,
    options: Options,
    previous: Previous | None = None,
    progress: Progress | None = None,
) -> Written:
    """Make the image durable in the store.

    Raises:
        StoreProblem: the store did not take it; what it has of this attempt belongs to nothing and is swept later.
        SaveFailed: the arena was filled anew meanwhile; the same holds for the store.
    """
    del previous
    began = time.monotonic()
    cuts = cut(filled.slices, len(filled.image), options.chunk_bytes)
    key = image_key(attempt, writer)
    counter = _Counter("digest", len(filled.image), progress)
    with ThreadPoolExecutor(options.threads, "closeranks-digest") as pool:
        fast = _digested(pool, digests.xxh3, filled.image, cuts, counter) if options.xxh3 else None
        strong = _digested(pool, digests.blake3, filled.image, cuts, counter) if options.blake3 else None
        written = store.write(key, [filled.image])
        write_s = time.monotonic() - began
        extents = [
            _plain(piece, key, piece.at, fast[n].result() if fast else "", strong[n].result() if strong else "")
            for n, piece in enumerate(cuts)
        ]
    if not filled.still():
        raise SaveFailed(f"{attempt}: the image of writer {writer} was replaced while it was written")
    return Written(_index(filled, attempt, writer, extents), (), written, 0, time.monotonic() - began, write_s)


class _Counter:
    def __init__(self, stage: str, total: int, progress: Progress | None) -> None:
        self._stage, self._total, self._progress, self._done = stage, total, progress, 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(self._stage, self._done, self._total)


def _digested(
    pool: ThreadPoolExecutor, digest: Callable[[Buffer], str], image: Buffer, cuts: Iterable[Cut], counter: _Counter
) -> list[Future[str]]:
    def one(piece: Cut) -> str:
        value = digest(image[piece.at : piece.at + piece.length])
        counter.add(piece.length)
        return value

    return [pool.submit(one, piece) for piece in cuts]


def _plain(piece: Cut, key: str, begin: int, fast: str = "", strong: str = "") -> Extent:
    return Extent(
        at=piece.at, length=piece.length, object=key, begin=begin, stored=piece.length, xxh3=fast, blake3=strong
    )


def _index(filled: Filled, attempt: str, writer: int, extents: Sequence[Extent]) -> ShardIndex:
    return ShardIndex(
        format=FORMAT,
        attempt=attempt,
        writer=writer,
        image_bytes=len(filled.image),
        slices=filled.slices,
        extents=tuple(extents),
        shared=filled.shared,
        local=filled.local,
    )
