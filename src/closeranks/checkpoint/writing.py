"""One writer's image into a store: digests, reuse of what an earlier generation has, and the durable write.

Digests are taken by threads of their own while the store writes: writing past the page cache leaves the processor free.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from closeranks.checkpoint import digests
from closeranks.checkpoint.arena import Filled
from closeranks.checkpoint.digesting import Counter, Digesting, digested, extent_of
from closeranks.checkpoint.extents import Cut, cut
from closeranks.checkpoint.format import FORMAT, Extent, ShardIndex
from closeranks.checkpoint.image import image_key
from closeranks.checkpoint.packing import Goal, Place, item_sizes, write_packed, write_plain
from closeranks.checkpoint.problems import SaveFailed
from closeranks.checkpoint.stores.store import Store
from closeranks.checkpoint.write_options import Options, Previous, Progress

__all__ = ["Options", "Previous", "Progress", "Written", "seal_index", "write_shard"]


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
        counter = Counter("digest", len(filled.image), progress)
        fast = [future.result() for future in digested(pool, digests.xxh3, filled.image, cuts, counter)]
    places = [Place(key, piece.at, piece.length, "") for piece in cuts]
    extents = [extent_of(*parts) for parts in zip(cuts, places, fast, [""] * len(cuts), strict=True)]
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
        work = Digesting(filled, options, pool, progress)
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


class _Write:
    """The changed part on its way into the store."""

    def __init__(self, store: Store, stem: str, work: Digesting, progress: Progress | None) -> None:
        self._store, self._stem, self._work, self._progress = store, stem, work, progress
        self.written_bytes = 0
        self.write_s = 0.0

    def changed(self, cuts: Sequence[Cut]) -> list[Place]:
        """Write the cuts, durably; where each of them went."""
        began = time.monotonic()
        counter = Counter("write", sum(piece.length for piece in cuts), self._progress)
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
