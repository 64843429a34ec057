"""Memory that does not keep what was written into it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from closeranks.probe.outcome import Failed, Outcome, Passed, Unknown

_BLOCK_BYTES: Final = 2**22
_PATTERNS: Final = (0x5555555555555555, 0xAAAAAAAAAAAAAAAA)  # every bit is once 0 and once 1, beside its opposite
_SHARE: Final = 0.25  # of what is available, at most
_WORD: Final = np.dtype(np.uint64)


def check_memory(size_bytes: int, progress: Callable[[float], None] = lambda _: None) -> Outcome:
    """Write patterns, and each word's own number, over so much memory and read all of it back.

    Less where less than four times as much is available. ``progress`` hears the share that is done.
    """
    available = available_bytes()
    if available is None:
        return Unknown("how much memory is available cannot be read from /proc/meminfo")
    blocks = min(size_bytes, int(_SHARE * available)) // _BLOCK_BYTES
    if blocks < 1:
        return Unknown(f"only {available / 2**20:.0f} MiB are available, too little to try any")
    began_s = time.monotonic()
    try:
        memory = np.empty(blocks * _BLOCK_BYTES // 8, _WORD)
    except MemoryError:
        return Unknown(f"{blocks * _BLOCK_BYTES / 2**20:.0f} MiB cannot be had, though the kernel says they are there")
    step = _BLOCK_BYTES // 8
    passes = (*_PATTERNS, None)
    for number, pattern in enumerate(passes):
        for start in range(0, memory.size, step):  # all is written before any is read, or caches would answer
            memory[start : start + step] = _wanted(pattern, start, step)
        for start in range(0, memory.size, step):
            problem = _compare(memory[start : start + step], _wanted(pattern, start, step), start)
            if problem:
                return Failed(problem)
            progress((number + (start + step) / memory.size) / len(passes))
    took_s = time.monotonic() - began_s
    return Passed(f"{memory.nbytes / 2**20:.0f} MiB kept {len(passes)} patterns, {took_s:.2f} s")


def available_bytes() -> int | None:
    """What can be had without swapping, by the kernel's own estimate."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError, IndexError):
        return None


def _wanted(pattern: int | None, start: int, count: int) -> np.ndarray:
    if pattern is None:
        return np.arange(start, start + count, dtype=_WORD)
    return np.full(count, pattern, _WORD)


def _compare(found: np.ndarray, wanted: np.ndarray, start: int) -> str:
    wrong = np.flatnonzero(found != wanted)
    if not wrong.size:
        return ""
    first = int(wrong[0])
    flipped = int(found[first]) ^ int(wanted[first])
    return (
        f"{wrong.size} of {wanted.size} words came back changed; the first, word {start + first}, "
        f"in {flipped.bit_count()} bits (mask {flipped:#018x})"
    )
