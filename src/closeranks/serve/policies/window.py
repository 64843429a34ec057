"""Sums and quantiles over the last seconds, in slices: the memory does not grow with the traffic. Pure."""

from __future__ import annotations

import math
from typing import Final

SLICES: Final = 10
_BASE: Final = 1.1  # one step of the quantiles' scale: they are right to within a tenth
_SMALLEST_S: Final = 1e-4
_STEPS: Final = 192  # up to 1e-4 * 1.1**192 = 9,000 s
_LOG_BASE: Final = math.log(_BASE)


class Tally:
    """The sum of what was added within ``window_s``; what is older leaves in slices of a tenth of it."""

    __slots__ = ("_at", "_newest", "_next_s", "_slices", "_width_s")

    def __init__(self, window_s: float) -> None:
        self._width_s = window_s / SLICES
        self._slices = [0.0] * SLICES
        self._newest = self._at = 0
        self._next_s = self._width_s  # when the newest slice ends: nearly every addition comes before that

    def add(self, now_s: float, amount: float = 1.0) -> None:
        """Add; a time before the newest one counts as the newest."""
        if now_s >= self._next_s:
            self._advance(now_s)
        self._slices[self._at] += amount

    def total(self, now_s: float) -> float:
        """The sum."""
        if now_s >= self._next_s:
            self._advance(now_s)
        return sum(self._slices)

    def _advance(self, now_s: float) -> None:
        number = int(now_s / self._width_s)
        for passed in range(max(self._newest + 1, number - SLICES + 1), number + 1):
            self._slices[passed % SLICES] = 0.0
        self._newest, self._at = number, number % SLICES
        self._next_s = (number + 1) * self._width_s


class Durations:
    """Quantiles of durations within ``window_s``, on a logarithmic scale."""

    __slots__ = ("_newest", "_next_s", "_slices", "_width_s")

    def __init__(self, window_s: float) -> None:
        self._width_s = window_s / SLICES
        self._slices: list[dict[int, int]] = [{} for _ in range(SLICES)]
        self._newest = 0
        self._next_s = self._width_s

    def add(self, now_s: float, duration_s: float) -> None:
        """Add one."""
        if now_s >= self._next_s:
            self._advance(now_s)
        step = 0
        if duration_s > _SMALLEST_S:
            step = min(_STEPS, math.ceil(math.log(duration_s / _SMALLEST_S) / _LOG_BASE))
        counts = self._slices[self._newest % SLICES]
        counts[step] = counts.get(step, 0) + 1

    def quantile(self, now_s: float, share: float) -> float | None:
        """The duration that this share of them does not exceed, rounded up by at most a tenth; None without any."""
        self._advance(now_s)
        counts: dict[int, int] = {}
        for one in self._slices:
            for step, count in one.items():
                counts[step] = counts.get(step, 0) + count
        total = sum(counts.values())
        if not total:
            return None
        rank, seen = math.ceil(share * total), 0
        for step in sorted(counts):
            seen += counts[step]
            if seen >= rank:
                return float(_SMALLEST_S * _BASE**step)
        raise AssertionError("the last step holds the rest")  # pragma: no cover - seen reaches the total

    def _advance(self, now_s: float) -> None:
        number = int(now_s / self._width_s)
        for passed in range(max(self._newest + 1, number - SLICES + 1), number + 1):
            self._slices[passed % SLICES] = {}
        self._newest = max(self._newest, number)
        self._next_s = (self._newest + 1) * self._width_s
