"""Which dependencies the replicas are to do without for now, and what their answers say of them. Pure.

The replicas ask their feature store, cache or database themselves, and report how long that took. The gateway sees the
answers of all of them, so a breaker here opens earlier than any of theirs could, and for all at once: what it blocks is
named to the replica, which then uses its defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from closeranks.serve.policies.breaker import Ticket
from closeranks.serve.policies.dependency import Dependency, DependencySettings
from closeranks.serve.policies.timing import timings
from closeranks.serve.words import Outcome


class Asked:
    """What one request may ask, until it is known what came of it."""

    __slots__ = ("tickets", "without")

    def __init__(self, tickets: dict[str, Ticket], without: tuple[str, ...]) -> None:
        self.tickets = tickets
        self.without = without  # the names of what it is answered without


class Dependencies:
    """All that are configured."""

    def __init__(self, settings: Iterable[DependencySettings]) -> None:
        self.by_name = {one.name: Dependency(one) for one in settings}

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def inherit(self, before: Mapping[str, Dependency]) -> None:
        """What was learned of those whose settings are the same."""
        for name, known in before.items():
            if name in self.by_name and self.by_name[name].settings == known.settings:
                self.by_name[name] = known

    def ask(self, now_s: float) -> Asked:
        """A request goes to a replica."""
        asked = {name: one.ask(now_s) for name, one in self.by_name.items()}
        without = tuple(name for name, ticket in asked.items() if ticket is None)
        return Asked({name: ticket for name, ticket in asked.items() if ticket is not None}, without)

    def answered(self, now_s: float, asked: Asked, report: bytes) -> None:
        """Its answer has begun, with this ``Server-Timing``; empty: there is none, or it was not answered."""
        told = timings(report) if report else {}
        for name, ticket in asked.tickets.items():
            timing = told.get(name)
            if timing is None:  # nobody was asked: that says nothing
                self.by_name[name].breaker.end(now_s, ticket, Outcome.GONE)
                continue
            outcome = Outcome.SLOW if timing.failed else Outcome.OK
            self.by_name[name].answered(now_s, ticket, outcome, timing.took_s)
        asked.tickets.clear()

    def p99_s(self, now_s: float) -> float | None:
        """Of the slowest; None while nothing is known."""
        every = [p99_s for one in self.by_name.values() if (p99_s := one.p99_s(now_s)) is not None]
        return max(every, default=None)
