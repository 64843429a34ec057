"""One writer's image into a store: digests, reuse of what an earlier generation has, and the durable write.

Digests are taken by threads of their own while the store writes: writing past the page cache leaves the processor free.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import msgspec

from closeranks.checkpoint import digests
from closeranks.checkpoint.arena import Filled
from closeranks.checkpoint.extents import CHUNK_BYTES, Cut, cut, known
from closeranks.checkpoint.format import FORMAT, Extent, ShardIndex
from closeranks.checkpoint.image import image_key
from closeranks.checkpoint.packing import Goal, Place, item_sizes, write_packed, write_plain
from closeranks.checkpoint.problems import SaveFailed
from closeranks.checkpoint.stores.store import Buffer, Store

Progress = Callable[[str, int, int], None]
"""Called with the stage, the bytes done and the bytes in all; from any thread, but never from two at once."""

THREADS: Final = max(1, min(4, os.cpu_count() or 1))
LOOKS: Final = 16
"""Extents, spread over the image, that are compared before all are: when each of them changed, a save goes on at once.

Where a share f of the image is unchanged, this misses it with probability (1 - f)^16: at most 2.2 % of the writing is done
without need, and a save of which all has changed does not wait for its digests.
"""
WORTH: Final = 1 / 16
"""Of the image: reusing less is not worth depending on an earlier generation, and the object stays a whole image."""


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


@dataclass(frozen=True, slots=True)
class Previous:
    """The writer's shard in an alive generation, whose unchanged extents a save may refer to."""

    generation: int
    index: ShardIndex
    depth: int = 0  # incremental generations since the last whole one, this one included


@dataclass(frozen=True, slots=True)
class Written:
    """What a save did. The index is not published yet. Digests and writing overlap in time."""

    index: ShardIndex
    bases: tuple[int, ...]  # the generation that keeps the reused extents alive; empty when all was written
    written_bytes: int  # in the store
    reused_bytes: int  # of the image
    digest_s: float  # until the last digest was known
    write_s: float  # in the store


def seal_index(
    filled: Filled, attempt: str, writer: int, options: Options, progress: Progress | None = None
) -> ShardIndex:
    """The index of the image as memory homes keep it: one whole object, each extent with its fast digest."""
    cuts = cut(filled.slices, len(filled.image), options.chunk_bytes)
    key = image_key(attempt, writer)
    with ThreadPoolExecutor(options.threads, "closeranks-digest") as pool:
        counter = _Counter("digest", len(filled.image), progress)
        fast = [future.result() for future in _digested(pool, digests.xxh3, filled.image, cuts, counter)]
    places = [Place(key, piece.at, piece.length, "") for piece in cuts]
    extents = [_extent(*parts) for parts in zip(cuts, places, fast, [""] * len(cuts), strict=True)]
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
    """Make the image durable in the store, except for what ``previous`` has of it.

    Raises:
        StoreProblem: the store did not take it; what it has of this attempt belongs to nothing and is swept later.
        SaveFailed: the memory changed while it was written, by accident or for a newer image; the same holds.
    """
    with ThreadPoolExecutor(options.threads, "closeranks-digest") as pool:
        work = _Work(filled, options, pool, progress)
        try:
            old = work.reusable(previous)
            write = _Write(store, image_key(attempt, writer).removesuffix(".safetensors"), work, progress)
            places = write.changed([piece for piece, have in zip(work.cuts, old, strict=True) if have is None])
            extents = work.extents(old, places)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if not filled.still():
        raise SaveFailed(f"{attempt}: the image of writer {writer} was replaced while it was written")
    reused = sum(have.length for have in old if have is not None)
    bases = (previous.generation,) if previous is not None and reused else ()
    index = msgspec.structs.replace(_index(filled, attempt, writer, extents), bases=bases)
    return Written(index, bases, write.written_bytes, reused, work.digest_s, write.write_s)


class _Work:
    """The digests of one image, and what they decide."""

    def __init__(self, filled: Filled, options: Options, pool: ThreadPoolExecutor, progress: Progress | None) -> None:
        self.filled, self.options, self.pool = filled, options, pool
        self.cuts = cut(filled.slices, len(filled.image), options.chunk_bytes)
        self.sealed = _sealed_digests(filled, self.cuts)
        self._began = time.monotonic()
        self._counter = _Counter("digest", len(filled.image) * (options.xxh3 + options.blake3), progress)
        self._fast = self._start(digests.xxh3, self._looks_first()) if options.xxh3 else {}
        self._strong: dict[int, Future[str]] = {}

    def reusable(self, previous: Previous | None) -> list[Extent | None]:
        """For every cut what the previous generation has of it; with BLAKE3 only after that agreed as well."""
        options = self.options
        may = previous is not None and options.incremental and options.xxh3 and previous.depth < options.full_every
        old = self._unchanged(previous.index) if previous is not None and may else [None] * len(self.cuts)
        if options.blake3:
            # What is reused comes first: the write waits for it alone.
            order = sorted(range(len(old)), key=lambda number: old[number] is None)
            self._strong = self._start(digests.blake3, order)
            for number, have in enumerate(old):
                if have is not None and have.blake3 not in ("", self._strong[number].result()):
                    old[number] = None
        return old

    def _unchanged(self, previous: ShardIndex) -> list[Extent | None]:
        count, looks = len(self.cuts), self._looks()
        seen = known([self.cuts[n] for n in looks], [self._fast_of(n) for n in looks], previous)
        if count > 1 and not any(seen):
            return [None] * count
        old = list(known(self.cuts, [self._fast_of(number) for number in range(count)], previous))
        gain = sum(have.length for have in old if have is not None)
        return old if gain >= WORTH * len(self.filled.image) else [None] * count

    def _looks(self) -> range:
        return range(1, len(self.cuts), max(1, len(self.cuts) // LOOKS))  # the header says nothing about the tensors

    def _looks_first(self) -> list[int]:
        looks = self._looks()
        return [*looks, *(number for number in range(len(self.cuts)) if number not in looks)]

    def _fast_of(self, number: int) -> str:
        return self.sealed[number] if self.sealed else self._fast[number].result()

    def extents(self, old: Sequence[Extent | None], places: Iterable[Place]) -> list[Extent]:
        """The extents of the new index, once all digests are known.

        Raises:
            SaveFailed: a digest is not the one with which the image was sealed.
        """
        place = iter(places)
        extents = []
        for number, (piece, have) in enumerate(zip(self.cuts, old, strict=True)):
            fast = self._fast[number].result() if self._fast else ""
            strong = self._strong[number].result() if self._strong else ""
            if fast and self.sealed and self.sealed[number] != fast:
                where = f"bytes {piece.at} to {piece.at + piece.length} of the image of step {self.filled.step}"
                raise SaveFailed(f"memory of this node: {where} changed after they were sealed; test the memory")
            if have is None:
                extents.append(_extent(piece, next(place), fast, strong))
            else:
                kept = Place(have.object, have.begin, have.stored, have.codec)
                extents.append(_extent(piece, kept, fast, strong or have.blake3))
        return extents

    @property
    def digest_s(self) -> float:
        """Seconds from the start to the last digest."""
        return self._counter.last_s - self._began

    def _start(self, digest: Callable[[Buffer], str], order: Iterable[int]) -> dict[int, Future[str]]:
        numbers = list(order)
        cuts = [self.cuts[number] for number in numbers]
        found = _digested(self.pool, digest, self.filled.image, cuts, self._counter)
        return dict(zip(numbers, found, strict=True))


class _Write:
    """The changed part on its way into the store."""

    def __init__(self, store: Store, stem: str, work: _Work, progress: Progress | None) -> None:
        self._store, self._stem, self._work, self._progress = store, stem, work, progress
        self.written_bytes = 0
        self.write_s = 0.0

    def changed(self, cuts: Sequence[Cut]) -> list[Place]:
        """Write the cuts, durably; where each of them went."""
        began = time.monotonic()
        counter = _Counter("write", sum(piece.length for piece in cuts), self._progress)
        goal = Goal(self._store, self._stem, lambda _, data: counter.add(len(data)))
        image = self._work.filled.image
        if self._work.options.codec:
            items = item_sizes(cuts, self._work.filled.slices)
            places = write_packed(goal, image, cuts, items, self._work.pool)
        else:
            places = write_plain(goal, image, cuts)
        self.written_bytes = sum(place.stored for place in places)
        self.write_s = time.monotonic() - began
        return places


class _Counter:
    """Bytes done in one stage, told to whoever wants to know."""

    def __init__(self, stage: str, total: int, progress: Progress | None) -> None:
        self._stage, self._total, self._progress, self._done = stage, total, progress, 0
        self._lock = threading.Lock()
        self.last_s = time.monotonic()

    def add(self, count: int) -> None:
        """So many more are done."""
        with self._lock:
            self._done += count
            self.last_s = time.monotonic()
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


def _sealed_digests(filled: Filled, cuts: Sequence[Cut]) -> list[str]:
    """The fast digests that the image was sealed with, when it was cut in the same way."""
    extents = filled.index.extents if filled.index is not None else ()
    same = [(extent.at, extent.length) for extent in extents] == list(cuts)
    return [extent.xxh3 for extent in extents] if same and all(extent.xxh3 for extent in extents) else []


def _extent(piece: Cut, place: Place, fast: str, strong: str) -> Extent:
    return Extent(
        at=piece.at,
        length=piece.length,
        object=place.object,
        begin=place.begin,
        stored=place.stored,
        codec=place.codec,
        xxh3=fast,
        blake3=strong,
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
