"""Matrix products on the accelerators of this machine, for their test. Only a process that forks no workers asks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from closeranks.probe.matmul import Matrix

_CONTROL: Final = Path("/dev/nvidiactl")
_TYPES: Final = ("float32", "bfloat16")  # of different units of a device


def multipliers() -> dict[str, Callable[[Matrix, Matrix], Matrix]]:
    """By device and type: how it multiplies; empty without a device, or without torch to reach it."""
    if not _CONTROL.exists():  # torch takes seconds to import
        return {}
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return {}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {f"gpu{index} {kind}": _multiplier(torch, index, kind) for index in range(count) for kind in _TYPES}


def _multiplier(torch: Any, index: int, kind: str) -> Callable[[Matrix, Matrix], Matrix]:
    def multiply(a: Matrix, b: Matrix) -> Matrix:
        left, right = (torch.from_numpy(m).to(f"cuda:{index}", getattr(torch, kind)) for m in (a, b))
        product: Matrix = (left @ right).float().cpu().numpy()
        return product

    return multiply
