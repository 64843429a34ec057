"""Devices that multiply wrongly, the host's processors among them: products whose answer is known bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from closeranks.probe.matmul import Matrix, try_products
from closeranks.probe.outcome import Absent, Failed, Outcome, Passed

Multiply: TypeAlias = Callable[[Matrix, Matrix], Matrix]


def check_host_products(sizes: tuple[int, ...], progress: Callable[[float], None] = lambda _: None) -> Outcome:
    """Multiply with the library that this process computes with."""
    return _check({"host": np.matmul}, sizes, progress)


def check_device_products(
    devices: Mapping[str, Multiply], sizes: tuple[int, ...], progress: Callable[[float], None] = lambda _: None
) -> Outcome:
    """Multiply on every device, in every type."""
    return _check(devices, sizes, progress) if devices else Absent("no accelerator that torch can reach")


def _check(devices: Mapping[str, Multiply], sizes: tuple[int, ...], progress: Callable[[float], None]) -> Outcome:
    seed = time.time_ns() % 2**63  # other numbers each time
    began_s = time.monotonic()
    for done, (name, multiply) in enumerate(devices.items()):
        for number, size in enumerate(sizes):
            found = try_products(multiply, (size,), seed + number)
            if not found.passed:
                return Failed(f"{name}: {found.wrong} elements are wrong; {found.first} (seed {seed + number})")
            progress((done + (number + 1) / len(sizes)) / len(devices))
    told = f"{len(sizes)} products up to size {max(sizes)} are exact, {time.monotonic() - began_s:.2f} s"
    return Passed(told if len(devices) == 1 else f"{', '.join(devices)}: {told}")
