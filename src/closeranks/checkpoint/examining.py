"""Reading all bytes of generations and naming all that is damaged: the object, the bytes in it, and their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from closeranks.checkpoint.cover import Box
from closeranks.checkpoint.format import Extent, ShardIndex, ShardRef, Slice
from closeranks.checkpoint.history import Generation
from closeranks.checkpoint.problems import Damaged
from closeranks.checkpoint.reading import read_index, verify_shard
from closeranks.checkpoint.stores.retry import retried
from closeranks.checkpoint.stores.store import Store

Progress = Callable[[int, int], None]  # bytes of images looked at, bytes of all
HEADER: Final = "the header of the image"


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """One place that is not what was committed."""

    generation: int
    writer: int
    object: str
    begin: int | None  # first byte in the object; None: the object as a whole
    length: int | None  # bytes
    problem: str
    tensors: tuple[str, ...]  # whose bytes are there, with the box where the writer has a part of them


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one generation."""

    generation: int
    step: int
    image_bytes: int
    damage: tuple[Damage, ...]


class _Place(NamedTuple):
    """Bytes that several generations may refer to: they are read once."""

    object: str
    begin: int
    stored: int
    digests: tuple[str, str]


def examine(store: Store, generations: Iterable[Generation], progress: Progress | None = None) -> Iterator[Examined]:
    """Read every byte that the generations refer to, each once, and compare it with its digests; one at a time.

    Raises:
        StoreProblem: the store does not answer: nothing can be said.
    """
    chosen = tuple(generations)
    total = sum(ref.image_bytes for generation in chosen for ref in generation.manifest.shards)
    work = _Work(store, progress, total)
    for generation in chosen:
        damage = tuple(one for ref in generation.manifest.shards for one in work.shard(generation.number, ref))
        size = sum(ref.image_bytes for ref in generation.manifest.shards)
        yield Examined(generation=generation.number, step=generation.manifest.step, image_bytes=size, damage=damage)


class _Work:
    def __init__(self, store: Store, progress: Progress | None, total: int) -> None:
        self._store, self._progress, self._total = store, progress, total
        self._done = 0
        self._known: dict[_Place, str] = {}  # what is wrong with it, "" when it is right

    def shard(self, generation: int, ref: ShardRef) -> list[Damage]:
        """All that is damaged in one writer's part."""
        try:
            index = retried(lambda: read_index(self._store, ref))
        except Damaged as problem:
            self._advance(ref.image_bytes)
            every = ("all of this writer",)
            return [_damage(generation, ref.writer, ref.object, str(problem), every)]
        fresh = [extent for extent in index.extents if _place(extent) not in self._known]
        self._look(index, fresh, ref.image_bytes)
        self._done += ref.image_bytes
        return _merged(
            replace(
                _damage(generation, ref.writer, extent.object, wrong, tuple(_tensors(index, extent))),
                begin=extent.begin,
                length=extent.stored,
            )
            for extent in index.extents
            if (wrong := self._known[_place(extent)])
        )

    def _look(self, index: ShardIndex, extents: list[Extent], image_bytes: int) -> None:
        """Together, and one by one only where something is wrong."""

        def told(done: int, of: int) -> None:
            if self._progress is not None:
                self._progress(self._done + image_bytes * done // max(of, 1), self._total)

        try:
            retried(lambda: verify_shard(self._store, replace(index, extents=tuple(extents)), told))
            self._known |= dict.fromkeys(map(_place, extents), "")
        except Damaged:
            for extent in extents:
                self._known[_place(extent)] = self._problem(index, extent)

    def _problem(self, index: ShardIndex, extent: Extent) -> str:
        try:
            retried(lambda: verify_shard(self._store, replace(index, extents=(extent,))))
        except Damaged as problem:
            return str(problem)
        return ""

    def _advance(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)


def _place(extent: Extent) -> _Place:
    return _Place(extent.object, extent.begin, extent.stored, (extent.xxh3, extent.blake3))


def _damage(generation: int, writer: int, key: str, problem: str, tensors: tuple[str, ...]) -> Damage:
    return Damage(
        generation=generation, writer=writer, object=key, begin=None, length=None, problem=problem, tensors=tensors
    )


def _merged(damage: Iterable[Damage]) -> list[Damage]:
    """One place for neighbours with one problem: an object that is gone is said once."""
    merged: list[Damage] = []
    for one in damage:
        last = merged[-1] if merged else None
        if last is None or (last.object, last.problem, _end(last)) != (one.object, one.problem, one.begin):
            merged.append(one)
            continue
        tensors = tuple(dict.fromkeys((*last.tensors, *one.tensors)))
        merged[-1] = replace(last, length=(last.length or 0) + (one.length or 0), tensors=tensors)
    return merged


def _end(damage: Damage) -> int:
    return (damage.begin or 0) + (damage.length or 0)


def _tensors(index: ShardIndex, extent: Extent) -> Iterator[str]:
    begin, end = extent.at, extent.at + extent.length
    if begin < min((part.at for part in index.slices if part.length), default=index.image_bytes):
        yield HEADER
    for part in index.slices:
        if part.at < end and begin < part.at + part.length:
            yield name_of(part)


def name_of(part: Slice) -> str:
    """The tensor, and the box of it unless it is all of it."""
    whole = part.shape == part.global_shape
    return part.name if whole else f"{part.name}{Box(part.offsets, part.shape)}"
