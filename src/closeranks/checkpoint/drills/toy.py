"""A small state that is saved and restored in the crash drills, and tells by itself when it is a mixture.

Everything in it but the frozen tensor is a function of one number, its mark; no two saves have the same. So whatever is
restored must be the whole of one mark: another byte, another shard's mark or a missing row is found.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from closeranks.checkpoint.arena import Arena, Filled, Meta
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Manifest
from closeranks.checkpoint.gather import Patience, gather, publish_index
from closeranks.checkpoint.history import Generation, History
from closeranks.checkpoint.image import Leaf, lay_out
from closeranks.checkpoint.keys import attempt_name, term_of
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.checkpoint.reading import Region, fetch, read_index
from closeranks.checkpoint.stores.store import Store
from closeranks.checkpoint.writing import Options, Previous, write_shard

ROWS: Final = 12
_COLUMNS: Final = {"frozen": 512, "moving": 160, "slow": 64}
_OPTIONS: Final = Options(chunk_bytes=4096, full_every=4, threads=2)
_ITEM_BYTES: Final = 4


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one writer is asked to contribute."""

    attempt: str
    writer: int
    world: int
    mark: int
    base: int = 0  # the generation to reuse from; 0: write everything


class Mixed(Exception):
    """What was restored is not what was saved under any mark."""


def whole(mark: int) -> dict[str, bytes]:
    """Every tensor of the state with this mark, in full."""
    made = {}
    for name, columns in _COLUMNS.items():
        # "slow" changes with every fourth mark: sometimes reused, sometimes written.
        seed = {"frozen": 0, "moving": mark, "slow": mark // 4}[name]
        made[name] = random.Random(f"{name}/{seed}").randbytes(ROWS * columns * _ITEM_BYTES)  # noqa: S311 - replayed
    return made


def contribute(store: Store, part: Part, history: History, arena: Arena) -> None:
    """Write one writer's shard and publish its index. The arena is filled anew."""
    filled = _fill(part, arena)
    written = write_shard(store, part.attempt, part.writer, filled, _OPTIONS, _previous(store, part, history))
    publish_index(store, written.index, written.bases)


def commit(store: Store, log: CommitLog, part: Part, patience: Patience, step: int) -> int:
    """Wait for all shards of the attempt and publish it; ``part`` is that of any writer."""
    gathered = gather(store, part.attempt, part.world, patience)
    manifest = Manifest(
        attempt=part.attempt,
        step=step,
        world=part.world,
        layout="sharded",
        shards=gathered.shards,
        bases=gathered.bases,
        data_position={"mark": part.mark},
    )
    return log.commit(term_of(part.attempt), manifest)


def first_part(term: int, step: int, mark: int, world: int, base: int = 0) -> Part:
    """What writer 0 contributes to a new attempt."""
    return Part(
        attempt=attempt_name(term, step, f"{mark & 0xFFFFFFFF:08x}"), writer=0, world=world, mark=mark, base=base
    )


def restored(store: Store, generation: Generation) -> int:
    """Restore the generation in full and compare it with what its mark says. Returns the mark.

    Raises:
        Mixed: it is not the state of one mark, bit for bit.
        CheckpointProblem: it cannot be read.
    """
    mark = generation.manifest.data_position["mark"]
    tensors = {name: bytearray(ROWS * columns * _ITEM_BYTES) for name, columns in _COLUMNS.items()}
    filled = dict.fromkeys(_COLUMNS, 0)
    for ref in generation.manifest.shards:
        index = read_index(store, ref)
        regions = []
        for number, box in enumerate(index.slices):
            begin = box.offsets[0] * _COLUMNS[box.name] * _ITEM_BYTES
            target = memoryview(tensors[box.name])[begin : begin + box.length]
            regions.append(Region(number, (0, 0), box.shape, target))
            filled[box.name] += box.length
        fetch(store, index, regions, threads=1)
        _require(index.local == {"mark": mark}, generation, f"writer {ref.writer} says {index.local}, not mark {mark}")
    expected = whole(mark)
    for name, data in tensors.items():
        _require(filled[name] == len(data), generation, f"{name}: {filled[name]} of {len(data)} bytes are there")
        _require(bytes(data) == expected[name], generation, f"{name} has other bytes than mark {mark}")
    return int(mark)


def marks(store: Store, history: History) -> Mapping[int, int]:
    """Restore every generation that is alive: its mark, by number.

    Raises:
        Mixed: one of them is not what was saved, or cannot be read.
    """
    found = {}
    for number, generation in history.generations.items():
        try:
            found[number] = restored(store, generation)
        except CheckpointProblem as problem:
            raise Mixed(f"generation {number} cannot be restored: {problem}") from problem
    return found


def _fill(part: Part, arena: Arena) -> Filled:
    rows = (part.writer * ROWS // part.world, (part.writer + 1) * ROWS // part.world)
    shapes = [(name, (ROWS, columns), (rows[1] - rows[0], columns)) for name, columns in _COLUMNS.items()]
    layout = lay_out([Leaf(name, "F32", full, (rows[0], 0), shape) for name, full, shape in shapes])
    image = arena.open_image(0, layout)
    content = whole(part.mark)
    for box in layout.slices:
        width = _COLUMNS[box.name] * _ITEM_BYTES
        image[box.at : box.at + box.length] = content[box.name][rows[0] * width : rows[1] * width]
    shared: Any = {"mark": part.mark} if part.writer == 0 else None
    arena.finish(0, Meta(slices=layout.slices, shared=shared, local={"mark": part.mark}))
    filled = arena.filled()
    assert filled is not None
    return filled


def _previous(store: Store, part: Part, history: History) -> Previous | None:
    generation = history.generations.get(part.base)
    if generation is None or generation.manifest.world != part.world:
        return None
    return Previous(generation.number, read_index(store, generation.manifest.shards[part.writer]))


def _require(holds: bool, generation: Generation, problem: str) -> None:
    if not holds:
        raise Mixed(f"generation {generation.number}: {problem}")
