"""Timing of named operations, so that a slow loader and a slow device can be told apart."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_WINDOW = 1024


class Timers:
    """Windows of recent durations by name."""

    def __init__(self) -> None:
        self._windows: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}

    def forget(self) -> None:
        """Start anew, after the rehearsal."""
        self._windows.clear()
        self._counts.clear()

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Time the block."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._windows.setdefault(name, deque(maxlen=_WINDOW)).append(time.perf_counter() - began_s)
            self._counts[name] = self._counts.get(name, 0) + 1

    def summaries(self) -> list[tuple[str, int, float, float]]:
        """Name, count so far, and p50 and p99 in seconds of the recent window."""
        found = []
        for name, window in self._windows.items():
            ordered = sorted(window)
            last = len(ordered) - 1
            found.append((name, self._counts[name], ordered[last // 2], ordered[min(last, round(0.99 * last))]))
        return found
