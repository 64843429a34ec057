"""Randomness as a function of (seed, step, seat), so that a repeated or healed step draws what it would have drawn."""

from __future__ import annotations

import hashlib
import random
import struct
from typing import Any

import numpy as np
import torch


def derive(*parts: int) -> int:
    """A 63-bit seed from integers: equal parts give equal seeds, on every machine."""
    packed = struct.pack(f">{len(parts)}q", *parts)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "big") >> 1


class Randomness:
    """Sets torch's, Python's and numpy's generators at the start of an attempt, or leaves them alone."""

    def __init__(self, seed: int, *, managed: bool) -> None:
        self.seed = seed
        self.managed = managed

    def set_for(self, step: int, seat: int) -> None:
        """Set all generators for one attempt at ``step`` in ``seat``."""
        if self.managed:
            seed_everything(derive(self.seed, step, seat))

    def capture(self) -> Any:
        """Random state that set_for does not determine; None when it determines all."""
        if self.managed:
            return None
        return (torch.get_rng_state(), random.getstate(), np.random.get_state())  # noqa: NPY002 - the user's global

    def restore(self, state: Any) -> None:
        """Put captured state back."""
        if state is None:
            return
        torch.set_rng_state(state[0])
        random.setstate(state[1])
        np.random.set_state(state[2])  # noqa: NPY002


def seed_everything(seed: int) -> None:
    """Seed the generators of torch (CPU, and CUDA where it is in use), Python and numpy."""
    torch.default_generator.manual_seed(seed)  # 1 us; torch.manual_seed takes 88 us
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the user's code may draw from the global generator


def plain_random(state: Any) -> Any:
    """Random state as JSON and tensors."""
    torch_state, (version, words, gauss), (name, keys, position, has_gauss, cached) = state
    return [torch_state, [version, list(words), gauss], [name, keys.astype("int64"), position, has_gauss, cached]]


def random_of(plain: Any) -> Any:
    """The inverse of plain_random."""
    torch_state, (version, words, gauss), (name, keys, position, has_gauss, cached) = plain
    numpy_state = (name, keys.astype("uint32"), position, has_gauss, cached)
    return (torch_state, (version, tuple(words), gauss), numpy_state)
