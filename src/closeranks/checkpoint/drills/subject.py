"""A small real store whose every byte is known, and the plainest way to restore from it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from closeranks.checkpoint.arena import Arena, Filled, Meta
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Manifest, ShardIndex, ShardRef
from closeranks.checkpoint.gather import publish_index
from closeranks.checkpoint.history import Generation
from closeranks.checkpoint.image import DTYPES, Leaf, lay_out
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.problems import Damaged, NothingToRestore
from closeranks.checkpoint.reading import Region, fetch, read_index
from closeranks.checkpoint.stores.opening import found
from closeranks.checkpoint.stores.store import Store
from closeranks.checkpoint.writing import Options, Previous, write_shard

JOB: Final = "drill"
WORLD: Final = 2
STEPS: Final = (10, 20, 30, 40)
_COLUMNS: Final = 24
_PLAIN = Options(chunk_bytes=4096, threads=1)
_PACKED = Options(chunk_bytes=4096, threads=1, codec="zstd")


class State(NamedTuple):
    """All that a generation holds."""

    step: int
    tensors: Mapping[tuple[str, tuple[int, ...]], bytes]  # by name and offsets of the box
    beside: tuple[tuple[Any, Any], ...]  # shared and local, by writer


def leaves_of(writer: int) -> tuple[Leaf, ...]:
    """A frozen table cut by columns among the writers, two that are trained, and small ones."""
    half = _COLUMNS // WORLD
    return (
        Leaf("frozen", "F32", (100, _COLUMNS), (0, writer * half), (100, half)),
        Leaf("trained", "BF16", (90, _COLUMNS), (writer * 45, 0), (45, _COLUMNS)),
        Leaf("moment", "F32", (60, _COLUMNS), (writer * 30, 0), (30, _COLUMNS)),
        Leaf(f"seat/{writer}/counter", "I64", (), (), ()),
        Leaf(f"empty{writer}", "F32", (0, 3), (0, 0), (0, 3)),
    )


def build(store: Store) -> dict[int, State]:
    """Fill an empty place with generations that also refer to each other's bytes; what each of them holds."""
    found(store, JOB, make=True, now_wall_s=0.0)
    log = CommitLog(store, clock=lambda: 0.0)
    term = log.claim("drill")
    arenas = [Arena.create("drill") for _ in range(WORLD)]
    truths: dict[int, State] = {}
    previous: list[Previous | None] = [None] * WORLD
    for number, step in enumerate(STEPS):
        attempt = attempt_name(term, step, f"{number:08x}")
        images = [_fill(arena, writer, step) for writer, arena in enumerate(arenas)]
        options = _PACKED if number == 1 else _PLAIN
        shards = [
            write_shard(store, attempt, writer, images[writer], options, previous[writer]) for writer in range(WORLD)
        ]
        refs = tuple(publish_index(store, shard.index, shard.bases) for shard in shards)
        bases = tuple(sorted({base for shard in shards for base in shard.bases}))
        generation = log.commit(term, _manifest(attempt, step, refs, bases))
        previous = [Previous(generation, shard.index, number) for shard in shards]
        truths[generation] = _state(step, images)
    for arena in arenas:
        arena.close()
    return truths


def restore(durable: Store, homes: Sequence[Store]) -> tuple[int, State]:
    """The newest generation that can be read whole, every shard from the first home that has it undamaged.

    Raises:
        NothingToRestore: no generation can be read.
        Damaged: the log cannot be believed.
        StoreRefused: the store cannot.
    """
    found(durable, JOB, make=False, now_wall_s=0.0)
    reasons = []
    for generation in CommitLog(durable).refresh().newest_first():
        try:
            return generation.number, _read(generation, homes)
        except Damaged as damaged:
            reasons.append(f"generation {generation.number}: {damaged}")
    raise NothingToRestore(f"{durable.url}: no generation can be read: {'; '.join(reasons) or 'there is none'}")


def _read(generation: Generation, homes: Sequence[Store]) -> State:
    tensors: dict[tuple[str, tuple[int, ...]], bytes] = {}
    beside = []
    for ref in generation.manifest.shards:
        index, part = _shard(ref, homes)
        tensors |= part
        beside.append((index.shared, index.local))
    return State(generation.manifest.step, tensors, tuple(beside))


def _shard(ref: ShardRef, homes: Sequence[Store]) -> tuple[ShardIndex, dict[tuple[str, tuple[int, ...]], bytes]]:
    for number, home in enumerate(homes):
        try:
            index = read_index(home, ref)
            targets = [bytearray(part.length) for part in index.slices]
            regions = [
                Region(place, (0,) * len(part.shape), part.shape, memoryview(target))
                for place, (part, target) in enumerate(zip(index.slices, targets, strict=True))
            ]
            fetch(home, index, regions, threads=1)
        except Damaged:
            if number == len(homes) - 1:
                raise
            continue
        names = [(part.name, part.offsets) for part in index.slices]
        return index, dict(zip(names, map(bytes, targets), strict=True))
    raise ValueError("expected at least one home")


def _fill(arena: Arena, writer: int, step: int) -> Filled:
    layout = lay_out(leaves_of(writer))
    image = arena.open_image(step, layout)
    for part in layout.slices:
        draw = random.Random(f"{part.name} {part.offsets} {0 if part.name == 'frozen' else step}")  # noqa: S311
        image[part.at : part.at + part.length] = bytes(draw.choices(range(32), k=part.length))
    arena.finish(step, Meta(slices=layout.slices, shared={"lr": 1 / step}, local={"writer": writer, "seen": 8 * step}))
    filled = arena.filled()
    assert filled is not None
    return filled


def _state(step: int, images: Sequence[Filled]) -> State:
    tensors = {
        (part.name, part.offsets): bytes(image.image[part.at : part.at + part.length])
        for image in images
        for part in image.slices
    }
    return State(step, tensors, tuple((image.shared, image.local) for image in images))


def _manifest(attempt: str, step: int, shards: tuple[ShardRef, ...], bases: tuple[int, ...]) -> Manifest:
    return Manifest(attempt=attempt, step=step, world=WORLD, layout="sharded", shards=shards, bases=bases)


def whole_tensors(state: State) -> dict[str, bytes]:
    """The bytes of every tensor that has any, put together from its boxes."""
    whole: dict[str, np.ndarray[Any, Any]] = {}
    for leaf in (leaf for writer in range(WORLD) for leaf in leaves_of(writer)):
        data = np.frombuffer(state.tensors[leaf.name, leaf.offsets], f"V{DTYPES[leaf.dtype]}").reshape(leaf.shape)
        if data.size:
            tensor = whole.setdefault(leaf.name, np.zeros(leaf.global_shape, data.dtype))
            ends = (begin + size for begin, size in zip(leaf.offsets, leaf.shape, strict=True))
            tensor[tuple(itertools.starmap(slice, zip(leaf.offsets, ends, strict=True)))] = data
    return {name: tensor.tobytes() for name, tensor in whole.items()}
