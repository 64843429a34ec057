"""What a service depends on besides its replicas: a feature store, a cache, a database. Pure.

Too slow is a failure here: a dependency that answers late holds up everything behind it, so it counts against the
breaker as one that does not answer. While the breaker is open nobody asks it, and whoever needs it uses its fallback
at once: that is what keeps one slow cache from taking down all that stands above it.
"""

from __future__ import annotations

import msgspec

from closeranks.serve.policies.bounds import positive
from closeranks.serve.policies.breaker import Breaker, BreakerSettings, Ticket
from closeranks.serve.policies.window import Durations
from closeranks.serve.words import Outcome


class DependencySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[dependency]]``."""

    name: str
    slow_s: float = 0.1  # an answer that took longer is a failure
    window_s: float = 10.0
    breaker: BreakerSettings = BreakerSettings()

    def __post_init__(self) -> None:
        positive(self, "slow_s", "window_s")


class Dependency:
    """One of them."""

    def __init__(self, settings: DependencySettings) -> None:
        self.settings = settings
        self.breaker = Breaker(settings.breaker)
        self._latencies = Durations(settings.window_s)

    def ask(self, now_s: float) -> Ticket | None:
        """A question may go out with this ticket; None: use the fallback."""
        return None if self.breaker.blocks(now_s) else self.breaker.begin(now_s)

    def answered(self, now_s: float, ticket: Ticket, outcome: Outcome, latency_s: float) -> bool:
        """A question has ended; whether this has opened the breaker."""
        self._latencies.add(now_s, latency_s)
        slow = outcome is Outcome.OK and latency_s > self.settings.slow_s
        return self.breaker.end(now_s, ticket, Outcome.SLOW if slow else outcome)

    def p99_s(self, now_s: float) -> float | None:
        """Of the latest answers; None without any."""
        return self._latencies.quantile(now_s, 0.99)
