"""Five times as much as the replicas can do, in virtual time around the real traffic."""

from tests.serve.policies.world import Replica, World

from closeranks.serve.policies import Kind, Priority

CAPACITY_PER_S = 2 * 8 / 0.1
OVERLOAD_S, END_S = 12.0, 20.0


def overloaded():
    world = World(Replica("a"), Replica("b"))
    world.load(0.0, OVERLOAD_S, 0.5 * CAPACITY_PER_S, premium=True, priority=Priority.INTERACTIVE, tenant="gold")
    world.load(0.0, OVERLOAD_S, 1.5 * CAPACITY_PER_S, tenant="free1")
    world.load(0.0, OVERLOAD_S, 1.5 * CAPACITY_PER_S, tenant="free2")
    world.load(0.0, OVERLOAD_S, 1.5 * CAPACITY_PER_S, priority=Priority.BATCH, tenant="bulk")
    world.load(OVERLOAD_S, END_S, 0.3 * CAPACITY_PER_S, tenant="free1")
    world.load(OVERLOAD_S, END_S, 0.1 * CAPACITY_PER_S, priority=Priority.BATCH, tenant="bulk")
    world.run(END_S + 30.0)
    return world


def quantile(values, share):
    return sorted(values)[int(share * (len(values) - 1))]


def test_five_times_the_capacity_costs_the_top_class_nothing_and_is_over_when_it_ends():
    world = overloaded()
    calls = list(world.calls.values())
    assert all(call.over for call in calls)
    flood = [call for call in calls if call.ask.arrived_s < OVERLOAD_S]
    top = [call for call in flood if call.ask.premium]
    assert sum(call.good for call in top) >= 0.99 * len(top)
    assert quantile([call.ended_s - call.ask.arrived_s for call in top], 0.99) < 1.5

    # Goodput stays near the capacity, and whoever is let in is served soon.
    assert sum(call.good for call in flood) > 0.85 * CAPACITY_PER_S * OVERLOAD_S
    begun = [call.ended_s - call.began_s for call in flood if call.began_s is not None]
    assert quantile(begun, 0.99) < 1.0

    # Turned away is turned away at once, mostly; nothing piles up.
    refused = [call.ended_s - call.ask.arrived_s for call in flood if call.status == 503]
    assert quantile(refused, 0.5) < 0.1
    assert world.most_waiting <= 6 * 256

    # Tenants of one class get the same.
    shares = [sum(call.good for call in flood if call.ask.tenant == name) for name in ("free1", "free2")]
    assert max(shares) < 1.2 * min(shares)

    # Six seconds after the flood everybody is served in full, batch too.
    later = [call for call in calls if call.ask.arrived_s > OVERLOAD_S + 6.0]
    assert all(call.good for call in later)
    assert quantile([call.ended_s - call.ask.arrived_s for call in later], 0.99) < 0.5

    assert all(spent <= allowed for spent, allowed in world.repeated)
    assert world.traffic.admission.in_flight == 0
    assert world.traffic._lives == {}


def test_a_thousand_requests_that_fail_at_once_are_retried_within_the_budget_and_then_shed():
    world = World(Replica("a", slots=600), Replica("b", slots=600))
    for replica in world.replicas.values():
        replica.refuses = True
    for _ in range(1000):
        world.at(1.0, world.ask, {})
    world.run(60.0)
    calls = world.calls.values()
    assert all(call.over and call.status == 503 for call in calls)
    retries = sum(len(call.tried) - 1 for call in calls)
    settings = world.traffic._settings.budget
    assert 0 < retries <= settings.floor_per_s * settings.window_s + settings.share * 1000
    assert all(spent <= allowed for spent, allowed in world.repeated)
    assert world.traffic.budget.allowed(60.0, Kind.RETRY) == settings.floor_per_s * settings.window_s


def test_a_replica_that_dies_and_returns_costs_few_requests_and_is_used_again():
    world = World(Replica("a"), Replica("b"))
    world.load(0.0, 40.0, 60.0)
    world.run(10.0)
    world.replicas["a"].dead = True
    world.run(20.0)
    world.replicas["a"].dead = False
    world.run(60.0)
    calls = list(world.calls.values())
    assert sum(call.good for call in calls) >= len(calls) - 5
    members = world.traffic.fleet.members
    assert members["a"].breaker.state == "closed"
    assert abs(members["a"].load.asked - members["b"].load.asked) < 10
