"""The classic cascade as a simulation: a cache node times out, and its database gets all the questions.

Without a breaker a feature call goes from 12 to 700 ms, p99 from 45 to 800 ms and errors from 0.1 to 15 %. With it, the
dependency is left alone within a second, and requests are answered with default features meanwhile.
"""

import heapq
import itertools
from random import Random

import pytest

from closeranks.serve.policies import (
    Assembled,
    BreakerSettings,
    Dependency,
    DependencySettings,
    Failed,
    Feature,
    Features,
    Need,
    Outcome,
    State,
    Used,
    Value,
    recognise,
)

PER_S = 200
FAILS_S, HEALS_S, END_S = 10.0, 30.0, 90.0
RANK_S, TIMEOUT_S, SLOW_S = 0.02, 0.75, 0.1


class Store:
    """A cache of two nodes before a database that is slow when it is flooded."""

    def __init__(self):
        self.node_lost = False
        self.in_database = 0

    def latency_s(self, random):
        """How long a question takes that goes out now; whether it went to the database."""
        missed = random.random() < (0.5 if self.node_lost else 0.01)
        if not missed:
            return random.uniform(0.008, 0.014), False
        return 0.02 + 0.012 * self.in_database * random.uniform(0.8, 1.2), True


class Service:
    """Ranks: asks for features, uses what there is, answers."""

    def __init__(self, *, guarded):
        self.random = Random(7)
        self.guarded = guarded
        self.patience_s = SLOW_S if guarded else TIMEOUT_S
        breaker = BreakerSettings(least=20, share=0.25, open_s=5.0, lease_s=2.0)
        self.dependency = Dependency(DependencySettings(name="features", slow_s=SLOW_S, breaker=breaker))
        self.features = Features(
            [
                Feature(name="embedding", need=Need.IMPORTANT, default=0.0, staleness_s=60.0),
                Feature(name="clicks", need=Need.USEFUL, staleness_s=600.0),
            ]
        )
        self.store = Store()
        self.answers = []  # (asked, latency, failed, degraded)
        self.asked_store = []
        self._events, self._order = [], itertools.count()

    def at(self, when_s, do, *what):
        heapq.heappush(self._events, (when_s, next(self._order), do, what))

    def run(self):
        for number in range(int(END_S * PER_S)):
            self.at(number / PER_S, self.ask, number / PER_S)
        while self._events:
            now_s, _, do, what = heapq.heappop(self._events)
            self.store.node_lost = FAILS_S <= now_s < HEALS_S
            do(*what)
        return self

    def ask(self, now_s):
        ticket = self.dependency.ask(now_s)
        if ticket is None and self.guarded:
            self.answer(now_s, now_s, None)
            return
        latency_s, in_database = self.store.latency_s(self.random)
        self.store.in_database += in_database
        self.asked_store.append(now_s)
        self.at(now_s + min(latency_s, self.patience_s), self.fetched, now_s, ticket, latency_s)
        if in_database:
            self.at(now_s + latency_s, self.left)  # the database works on, even if nobody waits any more

    def left(self):
        self.store.in_database -= 1

    def fetched(self, asked_s, ticket, latency_s):
        now_s = asked_s + min(latency_s, self.patience_s)
        outcome = Outcome.SLOW if latency_s > self.patience_s else Outcome.OK
        if self.guarded:
            self.dependency.answered(now_s, ticket, outcome, min(latency_s, self.patience_s))
        self.answer(asked_s, now_s, outcome)

    def answer(self, asked_s, now_s, outcome):
        fetched = {name: Value(1, now_s) for name in ("embedding", "clicks")} if outcome is Outcome.OK else {}
        if outcome is not Outcome.OK and not self.guarded:
            self.answers.append((asked_s, now_s - asked_s, True, False))
            return
        ready = self.features.assemble(now_s, "user", fetched or {"clicks": Failed("left alone")})
        failed = not isinstance(ready, Assembled)
        self.answers.append((asked_s, now_s + RANK_S - asked_s, failed, not failed and ready.degraded))

    def between(self, start_s, end_s):
        chosen = [answer for answer in self.answers if start_s <= answer[0] < end_s]
        latencies = sorted(latency_s for _, latency_s, _, _ in chosen)
        return {
            "p99_s": latencies[int(0.99 * (len(latencies) - 1))],
            "error_rate": sum(failed for _, _, failed, _ in chosen) / len(chosen),
            "degraded_share": sum(degraded for _, _, _, degraded in chosen) / len(chosen),
        }


@pytest.fixture(scope="module")
def guarded():
    return Service(guarded=True).run()


def test_without_a_breaker_it_is_an_outage():
    service = Service(guarded=False).run()
    before, during = service.between(0, FAILS_S), service.between(FAILS_S + 5, HEALS_S)
    assert before["p99_s"] < 0.06 and before["error_rate"] < 0.001
    assert during["p99_s"] > 0.7 and during["error_rate"] > 0.15
    usual = {**before, "dependency_s": 0.012}
    assert recognise({**during, "dependency_s": 0.7}, usual)[0].name == "cascade"


def test_with_a_breaker_it_ends_in_default_features_and_no_error(guarded):
    during = guarded.between(FAILS_S + 2, HEALS_S)
    assert during["error_rate"] == 0.0
    assert during["p99_s"] <= SLOW_S + RANK_S + 0.001
    assert during["degraded_share"] > 0.8
    assert guarded.dependency.breaker.opened >= 1
    used = guarded.features.assemble(END_S, "user", {}).used
    assert used == {"embedding": Used.DEFAULT, "clicks": Used.CACHED}


def test_the_flooded_database_is_left_alone(guarded):
    first_s = next(at_s for at_s, _, _, degraded in guarded.answers if degraded)
    assert FAILS_S <= first_s < FAILS_S + 2
    asked = sum(first_s + 1 <= at_s < HEALS_S for at_s in guarded.asked_store)
    assert asked < 0.2 * PER_S * (HEALS_S - first_s)


def test_full_service_returns_by_itself_when_the_store_is_well(guarded):
    after = guarded.between(HEALS_S + 40, END_S)
    assert after["degraded_share"] == 0.0
    assert guarded.dependency.breaker.state is State.CLOSED
