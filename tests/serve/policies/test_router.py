from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from closeranks.serve.policies import Load, Router, RoutingSettings, warnings


def loads(count=3, **more):
    return [Load(name=f"r{number}", capacity=8.0, **more) for number in range(count)]


def router(replicas):
    return Router(RoutingSettings(), replicas)


def test_the_least_outstanding_work_for_its_capacity_is_chosen():
    replicas = loads(2)
    replicas[0].outstanding, replicas[1].outstanding, replicas[1].capacity = 4.0, 6.0, 16.0
    assert router(replicas).choose(replicas).load.name == "r1"


def test_idle_replicas_take_turns():
    replicas = loads(3)
    one = router(replicas)
    assert [one.choose(replicas).load.name for _ in range(6)] == ["r0", "r1", "r2"] * 2


def test_a_standby_is_asked_only_if_no_active_one_may_be():
    replicas = [*loads(1), Load(name="spare", standby=True)]
    replicas[0].outstanding = 100.0
    one = router(replicas)
    assert one.choose(replicas).load.name == "r0"
    assert one.choose(replicas[1:]).reason == "standby"


def test_after_a_failure_another_domain_comes_first_and_the_same_one_is_better_than_none():
    replicas = [Load(name="a1", domain="a"), Load(name="a2", domain="a"), Load(name="b1", domain="b", outstanding=9.0)]
    one = router(replicas)
    assert one.choose(replicas[1:], "", frozenset({"a"})).load.name == "b1"
    assert one.choose(replicas[1:2], "", frozenset({"a"})).load.name == "a2"


def test_a_session_stays_and_only_the_sessions_of_a_lost_replica_move():
    replicas = loads(5)
    one = router(replicas)
    sessions = [f"s{number}" for number in range(300)]
    before = {session: one.choose(replicas, session).load.name for session in sessions}
    assert {one.choose(replicas, session).load.name for session in sessions for _ in range(2)} == set(before.values())
    after = {session: one.choose(replicas[1:], session).load.name for session in sessions}
    moved = [session for session in sessions if before[session] != after[session]]
    assert moved == [session for session in sessions if before[session] == "r0"]
    assert {session: one.choose(replicas, session).load.name for session in sessions} == before


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.integers(1, 6))
def test_no_replica_gets_more_than_its_bounded_share_even_of_one_session(sessions, count):
    replicas = loads(count)
    one = router(replicas)
    for number, session in enumerate(sessions, start=1):
        choice = one.choose(replicas, f"s{session}")
        choice.load.outstanding += 1
        assert choice.load.outstanding <= ceil(1.25 * number / count)


def test_sessions_spread_by_capacity():
    replicas = loads(4)
    replicas[3].capacity = 24.0
    one = router(replicas)
    counts = Counter(one.choose(replicas, f"s{number}").load.name for number in range(4000))
    assert 0.4 < counts["r3"] / 4000 < 0.6


def test_warnings_name_what_one_fault_takes():
    together = [Load(name="a", domain="x", capacity=8.0), Load(name="b", domain="x", capacity=8.0)]
    assert any("one fault takes them all" in text for text in warnings(together))
    assert warnings([Load(name="a")]) == ["a is the only replica: nothing can take its place"]
    apart = [Load(name=name, domain=name, capacity=8.0) for name in "abc"]
    assert len(warnings(apart)) == 3  # none of them is spare
    assert warnings(apart, expected=16.0) == []
    spare = [*apart, Load(name="d", domain="d", capacity=8.0, standby=True)]
    assert warnings(spare) == []
    assert "no domain is given" in warnings([Load(name="a"), Load(name="b")], expected=1.0)[0]
