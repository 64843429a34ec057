"""Timing of named operations, so that a slow loader and a slow device can be told apart."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import deque
from typing import TYPE_CHECKING

from closeranks.detect.timings import COLLECTING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from closeranks.sections import Sections

_WINDOW = 1024


class Timers:
    """Windows of recent durations by name; their sums are shown in the vitals page as well."""

    def __init__(self, shown: Sections) -> None:
        self._shown = shown
        self._windows: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}

    def forget(self) -> None:
        """Start anew, after the rehearsal. What is shown only grows: who reads it takes differences."""
        self._windows.clear()
        self._counts.clear()

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Time the block."""
        began_ns = time.monotonic_ns()
        try:
            yield
        finally:
            spent_ns = time.monotonic_ns() - began_ns
            self._windows.setdefault(name, deque(maxlen=_WINDOW)).append(spent_ns / 1e9)
            self._counts[name] = self._counts.get(name, 0) + 1
            self._shown.add(name, max(1, spent_ns))

    def show(self, name: str, spent_ns: int) -> None:
        """Count what the library times by itself, of which nobody wants percentiles."""
        self._shown.add(name, spent_ns)

    def summaries(self) -> list[tuple[str, int, float, float]]:
        """Name, count so far, and p50 and p99 in seconds of the recent window."""
        found = []
        for name, window in self._windows.items():
            ordered = sorted(window)
            last = len(ordered) - 1
            found.append((name, self._counts[name], ordered[last // 2], ordered[min(last, round(0.99 * last))]))
        return found


def watch_garbage(timers: Timers) -> None:
    """Show how long Python collects garbage, from now on."""
    timers.show(COLLECTING, 1)  # it is timed, also where it does not happen
    began_ns = 0

    def note(phase: str, _info: dict[str, int]) -> None:
        nonlocal began_ns
        if phase == "start":
            began_ns = time.monotonic_ns()
        else:
            timers.show(COLLECTING, time.monotonic_ns() - began_ns)

    gc.callbacks.append(note)
