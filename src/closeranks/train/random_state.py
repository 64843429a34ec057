"""The random generators of this process as state that can be saved."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from closeranks.train.randomness import derive, seed_everything


class RandomState:
    """Torch's (every CUDA device's too, where CUDA is in use), Python's and numpy's global generators."""

    def __init__(self, apart: int | None = None) -> None:
        """``apart``: this seat takes another one's state, and must not draw the same numbers."""
        self._apart = apart

    def state_dict(self) -> dict[str, Any]:
        """As nested data."""
        version, words, gauss = random.getstate()
        name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - the user's global generator
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if in_use else [],
            "python": [version, np.array(words, dtype=np.int64), gauss],
            "numpy": [str(name), np.asarray(keys).astype(np.int64), int(position), int(has_gauss), float(cached)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        version, words, gauss = state["python"]
        name, keys, position, has_gauss, cached = state["numpy"]
        random.setstate((version, tuple(int(word) for word in words), gauss))
        np.random.set_state((name, keys.astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(one, device)
        if self._apart is not None:
            drawn = int(torch.randint(2**62, ()))
            seed_everything(derive(drawn, self._apart))
