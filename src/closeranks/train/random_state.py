"""The random generators of this process as state that can be saved."""

from __future__ import annotations

from typing import Any

import torch

from closeranks.train.randomness import Randomness, derive, plain_random, random_of, seed_everything

_host = Randomness(0, managed=False)


class RandomState:
    """Torch's (every CUDA device's too, where CUDA is in use), Python's and numpy's global generators."""

    def __init__(self, apart: int | None = None) -> None:
        """``apart``: this seat takes another one's state, and must not draw the same numbers."""
        self._apart = apart

    def state_dict(self) -> dict[str, Any]:
        """As nested data."""
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return {"host": plain_random(_host.capture()), "cuda": torch.cuda.get_rng_state_all() if in_use else []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        _host.restore(random_of(state["host"]))
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(one, device)
        if self._apart is not None:
            drawn = int(torch.randint(2**62, ()))
            seed_everything(derive(drawn, self._apart))
