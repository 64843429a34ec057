"""What the processes of one gateway tell each other."""

import os

from closeranks.serve.policies.breaker import BreakerSettings, State
from closeranks.serve.policies.fleet import Fleet
from closeranks.serve.policies.health import HealthSettings
from closeranks.serve.policies.router import Load, RoutingSettings
from closeranks.serve.shared import FRESH_S, Shared, create


def fleets(count):
    page = create()
    made = []
    for _ in range(count):
        loads = [("", Load(name=name, capacity=1.0)) for name in ("a", "b")]
        made.append((Shared(page), Fleet(loads, HealthSettings(), BreakerSettings(), RoutingSettings())))
    os.close(page)
    return made


def states(fleet):
    return [member.breaker.state for member in fleet.members.values()]


def test_a_breaker_that_opens_in_one_process_opens_in_all_and_closes_in_each_by_itself():
    (one, first), (other, second) = fleets(2)
    first.members["a"].breaker.trip(100.0, "seen here")
    one.exchange(100.1, first)
    other.exchange(100.2, second)
    assert states(second) == [State.OPEN, State.CLOSED]
    second.members["a"].breaker.reset()
    for now_s in (100.3, 100.4, 100.5):
        one.exchange(now_s, first)
        other.exchange(now_s, second)
    assert states(second) == [State.CLOSED, State.CLOSED]
    first.members["a"].breaker.reset()
    first.members["a"].breaker.trip(101.0, "again")
    one.exchange(101.1, first)
    other.exchange(101.2, second)
    assert states(second) == [State.OPEN, State.CLOSED]


def test_what_opened_long_ago_is_no_news_to_a_process_that_begins():
    (one, first), (other, second) = fleets(2)
    first.members["b"].breaker.trip(100.0, "seen here")
    one.exchange(100.1, first)
    other.exchange(100.0 + FRESH_S, second)
    assert states(second) == [State.CLOSED, State.CLOSED]
