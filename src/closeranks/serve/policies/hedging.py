"""When a request that nobody has begun to answer is asked of a second replica, too. Pure.

Most answers begin soon, a few late, and what makes them late is often the replica's own affair: a pause, a queue, a
neighbour. Asking a second one after the time within which nearly all answers begin cuts off the tail, and repeats
only the few requests that belong to it.

What counts is when a *request* has its first byte, whoever gives it. A request that was hedged has waited for longer
than the delay, and is seen so: the delay does not shrink because of the hedges that it has brought about.

Source: Dean and Barroso, "The Tail at Scale", Communications of the ACM 56(2), 2013 (the 95th percentile).
"""

from __future__ import annotations

from typing import Final

import msgspec

from closeranks.serve.policies.bounds import positive, within
from closeranks.serve.policies.window import Durations, Tally

_KINDS_MAX: Final = 64
"""Only models that have answered are remembered, but a router behind the gateway may know a great many."""


class HedgingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[hedging]``."""

    enabled: bool = False
    quantile: float = 0.95  # of the recent times to the first byte; whoever waits for longer is hedged
    least_s: float = 0.05  # no hedge before that
    enough: int = 50  # first bytes within ``window_s`` before a quantile means anything
    window_s: float = 60.0

    def __post_init__(self) -> None:
        within(self, 0, 1, "quantile")
        within(self, 0, 1e6, "least_s")
        positive(self, "quantile", "enough", "window_s")


class Alike(msgspec.Struct, frozen=True):
    """Requests whose answers begin after comparable times."""

    tier: str
    model: str
    stream: bool  # the head of a stream comes long before that of a whole answer


class _Seen:
    def __init__(self, window_s: float) -> None:
        self.times, self.count = Durations(window_s), Tally(window_s)


class Hedging:
    """Learns when answers begin, and says after which time a second replica is asked."""

    def __init__(self, settings: HedgingSettings) -> None:
        self._settings = settings
        self.enabled = settings.enabled
        self._seen: dict[Alike, _Seen] = {}

    def heard(self, now_s: float, alike: Alike, took_s: float) -> None:
        """A request has had its first byte after ``took_s``."""
        if not self._settings.enabled:
            return
        seen = self._seen.get(alike)
        if seen is None:
            if len(self._seen) >= _KINDS_MAX:
                return
            seen = self._seen[alike] = _Seen(self._settings.window_s)
        seen.times.add(now_s, took_s)
        seen.count.add(now_s)

    def after_s(self, now_s: float, alike: Alike) -> float | None:
        """How long such a request waits for its first byte before it is hedged; None: for as long as it takes."""
        seen = self._seen.get(alike)
        if seen is None or seen.count.total(now_s) < self._settings.enough:
            return None
        usual_s = seen.times.quantile(now_s, self._settings.quantile)
        return None if usual_s is None else max(usual_s, self._settings.least_s)
