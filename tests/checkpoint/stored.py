"""Stores with checkpoints in them: a model of a few tensors whose values are functions of name, step and index."""

import contextlib
import secrets

import msgspec
import numpy as np

from closeranks.checkpoint.arena import Arena, Meta
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Manifest
from closeranks.checkpoint.gather import publish_index
from closeranks.checkpoint.image import Leaf, lay_out
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.stores.opening import found
from closeranks.checkpoint.writing import Options, write_shard

ROWS, COLUMNS = 24, 8
FROZEN = "model/frozen"


def value(name, step):
    """The whole tensor."""
    if name == "step":
        return np.array(step, np.int64)
    moved = 0 if name == FROZEN else step
    seed = sum(map(ord, name)) + 1000 * moved
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)


NAMES = ("model/weight", FROZEN, "optimizer/state/0/exp_avg")


def leaves_of(writer, world, names=NAMES):
    """Rows are shared out; the writer 0 has the scalar too."""
    start, end = ROWS * writer // world, ROWS * (writer + 1) // world
    leaves = [Leaf(name, "F32", (ROWS, COLUMNS), (start, 0), (end - start, COLUMNS)) for name in names]
    return leaves + ([Leaf("step", "I64", (), (), ())] if writer == 0 else [])


def fill(arena, leaves, step, *, shared=None, local=None, change=lambda _, array: array):
    layout = lay_out(leaves)
    image = arena.open_image(step, layout)
    for part in layout.slices:
        area = tuple(slice(o, o + n) for o, n in zip(part.offsets, part.shape, strict=True))
        data = np.ascontiguousarray(change(part.name, value(part.name, step))[area]).tobytes()
        image[part.at : part.at + part.length] = data
    arena.finish(step, Meta(slices=layout.slices, shared=shared, local=local))
    return arena.filled()


def put(store, attempt, step, *, world=2, options=None, **more):
    """All shards of an attempt; their references, in order."""
    refs = []
    names = more.pop("names", NAMES)
    for writer in range(world):
        arena = Arena.create("test")
        with contextlib.closing(arena):
            shared = {"epoch": step // 10} if writer == 0 else None
            filled = fill(arena, leaves_of(writer, world, names), step, shared=shared, local={"seat": writer}, **more)
            written = write_shard(store, attempt, writer, filled, options or Options())
            refs.append(publish_index(store, written.index))
    return tuple(refs)


class Stored:
    """A store of the job "job", with its log and the term of its writer."""

    def __init__(self, store=None):
        self.store = store or MemoryStore()
        found(self.store, "job", make=True, now_wall_s=1e9)
        self.wall_s = 1_700_000_000.0
        self.log = CommitLog(self.store, clock=lambda: self.wall_s, wait=lambda _: None)
        self.term = self.log.claim("test")

    def attempt(self, step):
        return attempt_name(self.term, step, secrets.token_hex(4))

    def save(self, step, *, world=2, attempt=None, manifest=None, **more):
        """A committed generation; its number."""
        self.wall_s += 60
        attempt = attempt or self.attempt(step)
        refs = put(self.store, attempt, step, world=world, **more)
        made = Manifest(attempt=attempt, step=step, world=world, layout="sharded", shards=refs)
        made = msgspec.structs.replace(made, **{"saved_wall_s": self.wall_s, **(manifest or {})})
        return self.log.commit(self.term, made)

    def objects(self):
        return {listed.key: listed.length for listed in self.store.list("")}

    def damage(self, key, at=-1):
        """Flip a bit of an object."""
        data = bytearray(self.store.read(key, 2**30))
        data[at] ^= 1
        self.replace(key, bytes(data))

    def replace(self, key, data):
        self.store.delete([key])
        assert self.store.create(key, data)
