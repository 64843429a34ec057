"""Who is kept out and who is not; a healthy fleet with the published rate of failures loses no node."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks import faults
from closeranks.decide import quarantine
from closeranks.decide.quarantine import (
    Admitted,
    AskPerson,
    By,
    Clear,
    Failure,
    Past,
    Quarantine,
    Refused,
    Register,
    Rules,
    Software,
    Suspect,
    admit,
    failed,
    judge,
    keep_out,
)

HOUR_S, DAY_S = 3600.0, 86_400.0
RULES = Rules()
FROZEN, NATIVE = faults.FROZEN.name, faults.NATIVE_CRASH.name


def fleet(size, hours=1000.0):
    return Register(nodes={f"n{k}": Past(hours=hours) for k in range(size)})


def struck(register, node, *times_s, fault=FROZEN, unit="slot 0"):
    for at_s in times_s:
        register = failed(register, node, Failure(fault=fault, unit=unit, at_s=at_s))
    return register


def out(register, node, at_s):
    return keep_out(register, node, "a reason", at_s, RULES)


def test_a_node_that_nobody_knows_is_admitted():
    assert admit(Register(), "new", 0.0) == Admitted()


@pytest.mark.parametrize(
    ("times_s", "verdict"),
    [
        ((0.0,), Clear),
        ((0.0, HOUR_S), Clear),
        ((0.0, HOUR_S, 2 * HOUR_S), Suspect),
        ((0.0, 25 * HOUR_S, 50 * HOUR_S), Clear),
    ],
)
def test_the_third_time_of_one_fault_on_one_unit_within_a_day_is_the_node(times_s, verdict):
    register = struck(fleet(3), "n1", *times_s)
    assert isinstance(judge(register, "n1", times_s[-1], RULES), verdict)


def test_the_same_fault_on_other_units_is_the_software_and_no_node():
    register = struck(fleet(20), "n1", 0.0, HOUR_S, 2 * HOUR_S)
    register = struck(register, "n2", HOUR_S)
    register = struck(register, "n3", HOUR_S)
    verdict = judge(register, "n1", 2 * HOUR_S, RULES)
    assert isinstance(verdict, Software)
    assert "n2" in verdict.reason
    assert "n3" in verdict.reason


def test_one_fault_everywhere_convicts_nobody_however_often_it_comes():
    register = fleet(20)
    for hour in range(10):
        for k in range(20):
            register = struck(register, f"n{k}", hour * HOUR_S)
            assert not isinstance(judge(register, f"n{k}", hour * HOUR_S, RULES), Suspect) or (hour, k) < (1, 2)


def test_many_different_faults_in_a_week_are_the_node():
    names = list(faults.CATALOGUE)[:5]
    register = fleet(3)
    for day, name in enumerate(names):
        register = struck(register, "n1", day * DAY_S, fault=name)
    verdict = judge(register, "n1", 4 * DAY_S, RULES)
    assert isinstance(verdict, Suspect)
    assert "5 failures" in verdict.reason


def test_a_lemon_is_found_against_the_rate_of_the_fleet():
    times_s = [20 * DAY_S * k for k in range(4)]
    register = struck(fleet(200, hours=2000.0), "n7", *times_s)
    verdict = judge(register, "n7", times_s[-1], RULES)
    assert isinstance(verdict, Suspect)
    assert "other 199 nodes" in verdict.reason


def test_what_is_a_lemon_among_many_is_chance_between_two():
    times_s = [20 * DAY_S * k for k in range(4)]
    register = struck(fleet(2, hours=2000.0), "n1", *times_s)
    assert judge(register, "n1", times_s[-1], RULES) == Clear()


def test_each_time_out_is_twice_as_long_up_to_a_bound_and_is_followed_by_probation():
    register, now_s, hours = fleet(30), 0.0, []
    for _ in range(7):
        register, ban = out(register, "n1", now_s)
        assert isinstance(ban, Quarantine)
        hours.append((ban.until_s - ban.since_s) / HOUR_S)
        assert isinstance(admit(register, "n1", ban.until_s - 1.0, RULES), Refused)
        assert admit(register, "n1", ban.until_s, RULES) == Admitted(on_probation=True)
        assert admit(register, "n1", ban.until_s + RULES.probation_s, RULES) == Admitted()
        now_s = ban.until_s + 2 * DAY_S
    assert hours == [24, 48, 96, 192, 384, 720, 720]


def test_one_failure_on_probation_is_enough():
    register, ban = out(fleet(30), "n1", 0.0)
    register = struck(register, "n1", ban.until_s + 1.0)
    assert isinstance(judge(register, "n1", ban.until_s + 1.0, RULES), Suspect)


def test_a_passed_test_ends_a_quarantine_of_rules_and_not_of_a_person():
    register, _ = out(fleet(30), "n1", 0.0)
    by_person = Quarantine(since_s=0.0, until_s=1e9, reason="no", by=By.PERSON)
    register = quarantine.confined(register, "n2", by_person)
    for node in ("n1", "n2"):
        register = quarantine.passed(register, node, HOUR_S)
    assert admit(register, "n1", HOUR_S, RULES) == Admitted(on_probation=True)
    assert isinstance(admit(register, "n2", HOUR_S, RULES), Refused)
    assert admit(quarantine.released(register, "n2"), "n2", HOUR_S, RULES) == Admitted()


def test_the_only_node_is_never_kept_out():
    register, outcome = out(fleet(1), "n0", 0.0)
    assert isinstance(outcome, AskPerson)
    assert admit(register, "n0", 0.0) == Admitted()


@given(st.integers(2, 60), st.lists(st.tuples(st.integers(0, 59), st.floats(0.0, 40.0)), max_size=80))
def test_a_rule_that_convicts_everybody_cannot_empty_the_cluster(size, convictions):
    register = fleet(size)
    for number, day in sorted(convictions, key=lambda one: one[1]):
        node, now_s = f"n{number % size}", day * DAY_S
        register, _ = out(register, node, now_s)
        refused = [name for name in register.nodes if isinstance(admit(register, name, now_s, RULES), Refused)]
        assert len(refused) <= max(1, int(RULES.share_out * size))
        today = [p.quarantine for p in register.nodes.values() if p.quarantine and now_s - p.quarantine.since_s < DAY_S]
        assert len(today) <= max(1, int(RULES.share_per_day * size))


def test_the_clock_can_change_and_the_past_with_it():
    register, _ = out(struck(fleet(30), "n1", 5.0), "n1", 10.0)
    moved = quarantine.moved(register, 100.0)
    assert moved.nodes["n1"].failures[0].at_s == 105.0
    assert quarantine.moved(moved, -100.0) == register


def test_memory_of_a_node_is_bounded():
    register = struck(Register(), "n1", *map(float, range(1000)))
    assert len(register.nodes["n1"].failures) == 64
    assert register.nodes["n1"].failures[-1].at_s == 999.0


# Kokolis et al., "Revisiting reliability in large-scale machine learning research clusters" (2025): 6.50 failures per
# 1,000 node-days on the larger of two clusters.
RANDOM_PER_NODE_DAY = 6.5 / 1000
COUNTING = [name for name, fault in faults.CATALOGUE.items() if fault.scope in ("node", "device", "process")]


def control_episode(seed):
    """A healthy fleet: failures come at random, at the published rate. The nodes that were taken for the cause."""
    rng = random.Random(seed)
    size, days = rng.choice((8, 64, 256)), 30
    register = fleet(size, hours=0.0)
    events = sorted(
        (rng.random() * days * DAY_S, f"n{rng.randrange(size)}")
        for _ in range(sum(rng.random() < RANDOM_PER_NODE_DAY for _ in range(size * days)))
    )
    wrong, worked_s = [], 0.0
    for at_s, node in events:
        if at_s - worked_s > DAY_S:
            hours = (at_s - worked_s) / HOUR_S
            register = Register(
                nodes={name: Past(failures=p.failures, hours=p.hours + hours) for name, p in register.nodes.items()}
            )
            worked_s = at_s
        failure = Failure(fault=rng.choice(COUNTING), unit=f"slot {rng.randrange(8)}", at_s=at_s)
        register = failed(register, node, failure)
        if isinstance(judge(register, node, at_s, RULES), Suspect):
            wrong.append((seed, node, at_s))
    return wrong


def test_no_healthy_node_is_taken_for_the_cause_in_a_thousand_episodes():
    assert [found for seed in range(1000) for found in control_episode(seed)] == []
