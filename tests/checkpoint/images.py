"""Filled arenas for the tests of the engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from closeranks.checkpoint.arena import Arena, Filled, Meta
from closeranks.checkpoint.image import Leaf, lay_out

ATTEMPT = "t00000001-s000000000003-0123abcd"


def whole(name: str, *shape: int, dtype: str = "F32") -> Leaf:
    """A leaf that is all of its tensor."""
    return Leaf(name, dtype, shape, (0,) * len(shape), shape)


def bytes_of(name: str, length: int, seed: int = 0) -> bytes:
    """The content of a tensor: a function of its name and a seed."""
    return random.Random(f"{name} {seed}").randbytes(length)


def fill(
    arena: Arena,
    leaves: Sequence[Leaf],
    *,
    step: int = 3,
    shared: Any = None,
    content: Callable[[str, int], bytes] = bytes_of,
) -> Filled:
    """Fill an arena with the leaves, all of it."""
    layout = lay_out(leaves)
    image = arena.open_image(step, layout)
    for part in layout.slices:
        image[part.at : part.at + part.length] = content(part.name, part.length)
    arena.finish(step, Meta(slices=layout.slices, shared=shared, local={"writer": 0}))
    filled = arena.filled()
    assert filled is not None
    return filled
