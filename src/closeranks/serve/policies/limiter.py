"""How much may be in flight at once, learned from latency alone. Pure.

As long as there is room, more concurrency costs no latency. Once requests queue behind each other, latency grows with
concurrency and throughput does not. The gradient, usual latency over present latency, tells the two apart: the limit
is multiplied by it, and gets a small allowance for a queue, so that it can grow at all.

Source: Netflix concurrency-limits, Gradient2Limit. One change: what is usual falls quickly, and rises only while
requests do not queue behind each other because of the limit: when half of it is unused, or it is at its least. So an
overload that lasts is not learned as the usual.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from closeranks.serve.policies.bounds import positive, within
from closeranks.serve.words import Outcome

_RISE: Final = 1 / 60  # of the usual latency's way to the present one, for each second
_RISE_AT_LEAST: Final = 1 / 240
_FALL: Final = 1 / 4
_GRADIENT_MIN: Final = 0.5
_SMOOTHING: Final = 0.3
_SEARCH: Final = 1.25
_DROP: Final = 0.9
_STEP_LEAST_S: Final = 0.1


REFUSALS: Final = frozenset({Outcome.BUSY, Outcome.SLOW})


class LimiterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[limiter]``. Limits are multiples of the capacity of all active replicas."""

    start: float = 4.0
    least: float = 1.0
    most: float = 32.0
    tolerance: float = 2.0  # times the usual latency that are no sign of overload
    window_s: float = 1.0  # latencies are judged together
    samples: int = 10  # at least so many

    def __post_init__(self) -> None:
        positive(self, "start", "least", "most", "window_s", "samples")
        within(self, 1, 1e6, "tolerance")


class Limiter:
    """The limit of one process."""

    def __init__(self, settings: LimiterSettings, capacity: float) -> None:
        self._settings = settings
        self._capacity = max(1.0, capacity)
        self.limit = settings.start * self._capacity
        self.usual_s: float | None = None
        self.gradient = 1.0
        self._sum_s = 0.0
        self._count = 0
        self._most_in_flight = 0.0
        self._since_s: float | None = None
        self._dropped_s = float("-inf")
        self._searching = True  # nothing has spoken against more: the limit grows quickly, as TCP's slow start

    def retune(self, settings: LimiterSettings, capacity: float) -> None:
        """Other settings, or other replicas: the limit goes along, what was learned of latency stays."""
        wanted = self.limit * max(1.0, capacity) / self._capacity
        self._settings, self._capacity = settings, max(1.0, capacity)
        self._set(wanted)

    def took(self, now_s: float, latency_s: float, in_flight: float) -> None:
        """A request was answered after ``latency_s``; ``in_flight`` of them were."""
        if self._since_s is None:
            self._since_s = now_s
        self._sum_s += latency_s
        self._count += 1
        self._most_in_flight = max(self._most_in_flight, in_flight)
        if self._count >= self._settings.samples and now_s >= self._since_s + self._settings.window_s:
            self._judge(now_s)

    def refused(self, now_s: float, outcome: Outcome) -> None:
        """A replica said that it has too much to do, or said nothing: less at once.

        At most one step in the time that an answer takes: what was sent before a step cannot show its effect.
        """
        if outcome not in REFUSALS:
            return
        pause_s = max(_STEP_LEAST_S, min(self.usual_s or 0.0, self._settings.window_s))
        if now_s >= self._dropped_s + pause_s:
            self._dropped_s, self._searching = now_s, False
            self._set(self.limit * _DROP)

    def _judge(self, now_s: float) -> None:
        present_s = self._sum_s / self._count
        lasted_s = now_s - (now_s if self._since_s is None else self._since_s)
        most, self._most_in_flight = self._most_in_flight, 0.0
        self._sum_s, self._count, self._since_s = 0.0, 0, now_s
        if self.usual_s is None:
            self.usual_s = present_s
        self.usual_s += self._way(present_s, lasted_s, most) * (present_s - self.usual_s)
        ratio = self._settings.tolerance * self.usual_s / present_s if present_s > 0 else 1.0
        self.gradient = max(_GRADIENT_MIN, min(1.0, ratio))
        self._searching = self._searching and self.gradient >= 1
        if most < self.limit / 2 and self.gradient >= 1:
            return  # the limit was not what limited: nothing was learned about it
        wanted = self.limit * self.gradient + math.sqrt(self.limit)
        self._set(_SEARCH * self.limit if self._searching else self.limit + _SMOOTHING * (wanted - self.limit))

    def _way(self, present_s: float, lasted_s: float, most: float) -> float:
        """How far the usual latency goes towards the present one."""
        if self.usual_s is None or present_s < self.usual_s:
            return _FALL
        if most < self.limit / 2:
            return min(1.0, _RISE * lasted_s)
        return min(1.0, _RISE_AT_LEAST * lasted_s) if self.limit <= self._settings.least * self._capacity else 0.0

    def _set(self, limit: float) -> None:
        settings = self._settings
        self.limit = min(settings.most * self._capacity, max(settings.least * self._capacity, limit))
