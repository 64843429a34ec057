"""Carries captured state through arenas into what a load needs: plain and slow, to compare the engine with."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.format import FORMAT, ShardIndex
from closeranks.checkpoint.image import DTYPES
from closeranks.train.capture import Captured, capture, copy_into
from closeranks.train.restore import Incoming, Rules, apply, needs_of, saved_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Save:
    """The images of all writers of one save, in memory."""

    def __init__(self, captured: Sequence[Captured]) -> None:
        self.arenas = [Arena.create("test") for _ in captured]
        for arena, one in zip(self.arenas, captured, strict=True):
            copy_into(one, arena, step=7)
        self.filled = [arena.filled() for arena in self.arenas]

    @property
    def indices(self) -> list[ShardIndex]:
        return [
            ShardIndex(
                format=FORMAT, attempt="t", writer=writer, image_bytes=len(one.image), slices=one.slices, extents=(),
                shared=one.shared, local=one.local,
            )
            for writer, one in enumerate(self.filled)
        ]  # fmt: skip

    def load(
        self, state: dict[str, Any], local: dict[str, Any] | None = None, seat: int = 0, **rules: bool
    ) -> Incoming:
        saved = saved_of(self.indices, seat, len(self.arenas), "the checkpoint")
        incoming = needs_of(state, local or {}, saved, Rules(**rules))
        self.fill(incoming)
        apply(incoming)
        return incoming

    def fill(self, incoming: Incoming) -> None:
        for need, target in zip(incoming.needs, incoming.targets, strict=True):
            item = DTYPES[need.dtype]
            whole = np.full((*need.global_shape, item), 255, np.uint8)
            covered = np.zeros(need.global_shape, np.int64)
            for one in self.filled:
                for part in one.slices:
                    if part.name == need.name:
                        box = tuple(slice(o, o + n) for o, n in zip(part.offsets, part.shape, strict=True))
                        data = np.frombuffer(one.image, np.uint8)[part.at : part.at + part.length]
                        whole[box] = data.reshape((*part.shape, item))
                        covered[box] += 1
            box = tuple(slice(o, o + n) for o, n in zip(need.offsets, need.shape, strict=True))
            assert (covered[box] == 1).all(), f"{need.name} is not saved exactly once"
            np.frombuffer(target, np.uint8)[:] = whole[box].reshape(-1)


def save(state: dict[str, Any], world: int = 1, local: dict[str, Any] | None = None) -> Save:
    """One state, saved by ``world`` writers that all hold it."""
    return Save([capture(state, local or {}, writer, world) for writer in range(world)])


def names(captured: Iterable[Captured]) -> list[str]:
    return [leaf.name for leaf in itertools.chain.from_iterable(one.leaves for one in captured)]
