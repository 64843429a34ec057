"""The digests of an image, taken by threads of their own, and what of it an earlier generation has already."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from closeranks.checkpoint import digests
from closeranks.checkpoint.arena import Filled
from closeranks.checkpoint.extents import Cut, cut, known
from closeranks.checkpoint.format import Extent, ShardIndex
from closeranks.checkpoint.packing import Place
from closeranks.checkpoint.problems import SaveFailed
from closeranks.checkpoint.stores.store import Buffer
from closeranks.checkpoint.write_options import Options, Previous, Progress

LOOKS: Final = 16
"""Extents, spread over the image, that are compared before all are: when each of them changed, a save goes on at once.

Where a share f of the image is unchanged, this misses it with probability (1 - f)^16: at most 2.2 % of the writing is
done without need, and a save of which all has changed does not wait for its digests.
"""
WORTH: Final = 1 / 16
"""Of the image: reusing less is not worth depending on an earlier generation, and the object stays a whole image."""


class Digesting:
    """The digests of one image, and what they decide."""

    def __init__(self, filled: Filled, options: Options, pool: ThreadPoolExecutor, progress: Progress | None) -> None:
        self.filled, self.options, self.pool = filled, options, pool
        self.cuts = cut(filled.slices, len(filled.image), options.chunk_bytes)
        self.sealed = _sealed_digests(filled, self.cuts)
        self._began = time.monotonic()
        self._counter = Counter("digest", len(filled.image) * (options.xxh3 + options.blake3), progress)
        self._fast = self._start(digests.xxh3, self._looks_first()) if options.xxh3 else {}
        self._strong: dict[int, Future[str]] = {}

    def reusable(self, previous: Previous | None) -> list[Extent | None]:
        """For every cut what the previous generation has of it; with BLAKE3 only after that agreed as well."""
        options = self.options
        old: list[Extent | None] = [None] * len(self.cuts)
        if previous is not None and options.may_reuse and previous.depth < options.full_every:
            old = self._unchanged(previous.index)
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
        none: list[Extent | None] = [None] * count
        seen = known([self.cuts[n] for n in looks], [self._fast_of(n) for n in looks], previous)
        if count > 1 and not any(seen):
            return none
        old = list(known(self.cuts, [self._fast_of(number) for number in range(count)], previous))
        gain = sum(have.length for have in old if have is not None)
        return old if gain >= WORTH * len(self.filled.image) else none

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
                extents.append(extent_of(piece, next(place), fast, strong))
            else:
                kept = Place(have.object, have.begin, have.stored, have.codec)
                extents.append(extent_of(piece, kept, fast, strong or have.blake3))
        return extents

    @property
    def digest_s(self) -> float:
        """Seconds from the start to the last digest."""
        return self._counter.last_s - self._began

    def _start(self, digest: Callable[[Buffer], str], order: Iterable[int]) -> dict[int, Future[str]]:
        numbers = list(order)
        cuts = [self.cuts[number] for number in numbers]
        found = digested(self.pool, digest, self.filled.image, cuts, self._counter)
        return dict(zip(numbers, found, strict=True))


class Counter:
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


def digested(
    pool: ThreadPoolExecutor, digest: Callable[[Buffer], str], image: Buffer, cuts: Iterable[Cut], counter: Counter
) -> list[Future[str]]:
    """Begin to take a digest of every cut, in their order."""

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


def extent_of(piece: Cut, place: Place, fast: str, strong: str) -> Extent:
    """A cut as an extent that is kept at a place."""
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
