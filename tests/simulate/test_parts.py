"""Policies, draws, nodes, statistics, the twin: one part at a time."""

import msgspec
import numpy as np
import pytest
from tests.simulate.virtual import crash, setup, strike

from closeranks.decide.save_interval import EverySeconds
from closeranks.detect.progress import Bounds
from closeranks.plan.checks import PlanInputError
from closeranks.plan.cluster import cluster_of
from closeranks.plan.trace import FailureRecord, Trace
from closeranks.simulate.draw import draw, replay
from closeranks.simulate.eyes import sight
from closeranks.simulate.fleet import Fleet
from closeranks.simulate.policy import UNLIMITED, Policy, read_policy
from closeranks.simulate.replicas import Work, replica
from closeranks.simulate.run import records_of
from closeranks.simulate.scenario import scenario_of, setup_of
from closeranks.simulate.statistics import estimate, student_t
from closeranks.simulate.strikes import Kind
from closeranks.simulate.twin import beside, timing_seen, twin_of
from closeranks.simulate.world import World
from closeranks.toml_text import TomlProblem

RAW = {
    "hardware": {"accelerators": 2048},
    "job": {"params": 70e9},
    "domain": [{"name": "rack", "nodes_each": 8, "per_day": 0.01}],
    "fault": [{"kind": "hang", "per_day": 1.0}],
}


def test_a_policy_speaks_of_budgets_deadlines_and_bounds_as_the_controller_does():
    text = "save_every_s = 600\nspares = 4\n[limits]\ncold_restarts = 7\n[bounds]\nfloor_s = 5.0\n"
    found = read_policy(text, "plans/often.toml")
    assert found.name == "often"
    assert found.every == EverySeconds(seconds=600)
    assert found.limits.cold_restarts == 7
    assert found.bounds == Bounds(floor_s=5.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sapres = 4", 'did you mean "spares"'),
        ("save_every_s = 60\nsave_every_steps = 5", "give seconds or steps"),
        ("spares = -1", "at least 0"),
        ("[[tier]]\nname = 'a'\n[[tier]]\nname = 'a'", "a name of its own"),
        ("[[tier]]\nevery = 0", "every >= 1"),
        ("[[tier]]\nevery = 2", "takes every snapshot"),
        ("spares = 'many'", "spares"),
    ],
)
def test_a_wrong_policy_is_named_with_the_way_out(text, told):
    with pytest.raises((PlanInputError, TomlProblem), match=r"p\.toml") as caught:
        read_policy(text, "p.toml")
    assert told in str(caught.value)


def test_policies_meet_the_same_faults_whatever_they_spare():
    scenario = scenario_of(cluster_of(RAW), days=20)
    few, many = (draw(scenario, 3, spares) for spares in (0, 0))
    assert few == many
    assert draw(scenario, 4, 0) != few
    hangs = [[s for s in draw(scenario, 3, spares) if s.kind is Kind.HANG] for spares in (0, 64)]
    assert hangs[0] == hangs[1]


def test_faults_come_as_often_as_their_sources_say():
    scenario = scenario_of(cluster_of(RAW), days=2000)
    counts = {kind: sum(s.kind is kind for s in draw(scenario, 1, 0)) for kind in (Kind.NODE, Kind.DOMAIN, Kind.HANG)}
    assert counts[Kind.HANG] == pytest.approx(2000, rel=0.1)
    assert counts[Kind.DOMAIN] == pytest.approx(2000 * 32 * 0.01, rel=0.2)
    assert counts[Kind.NODE] == pytest.approx(2000 * 24 * 2048 * 6.5 / 24 / 10_000, rel=0.1)


def test_a_count_of_failures_leaves_the_rate_open_and_a_law_keeps_its_mean():
    counted = cluster_of({**RAW, "measured": {"failures": 4, "unit_h": 4e5}})
    sizes = [len(draw(scenario_of(counted, days=20), seed, 0)) for seed in range(40)]
    assert np.std(sizes) > 2 * np.sqrt(np.mean(sizes))
    bursty = msgspec.structs.replace(scenario_of(cluster_of(RAW), days=3000), law_shape=0.65)
    losses = [s for s in draw(bursty, 2, 0) if s.kind is Kind.NODE and s.at_s > 0]
    assert len(losses) == pytest.approx(3000 * 24 * 2048 * 6.5 / 24 / 10_000, rel=0.1)


def test_a_log_is_played_again_unit_by_unit():
    records = (
        FailureRecord(unit="b", start_utc_s=1000.0, end_utc_s=1600.0),
        FailureRecord(unit="a", start_utc_s=900.0),
        FailureRecord(unit="b", start_utc_s=1e9),
    )
    first, second = replay(Trace(source="csv", records=records), nodes=8, horizon_s=1e6, repair_s=60.0)
    assert (first.at_s, first.nodes, first.lasts_s) == (0.0, (0,), 60.0)
    assert (second.at_s, second.nodes, second.lasts_s) == (100.0, (1,), 600.0)


def test_a_node_that_fails_twice_returns_with_the_later_repair():
    fleet = Fleet(4, 1)
    assert fleet.fail((1, 4), 10.0).job == (1,)
    assert fleet.fail((1,), 30.0).job == ()
    assert not fleet.whole
    assert fleet.mend(10.0)
    assert fleet.whole
    fleet.fill()
    assert (fleet.missing, fleet.idle) == (0, 0)
    assert fleet.mend(30.0)
    assert fleet.idle == 1


def test_a_big_job_has_few_seats_and_the_goodput_of_the_closed_form():
    cluster = cluster_of({**RAW, "domain": [], "fault": [], "corruption": {"per_accelerator_h": 0.0}})
    policy = Policy(name="p", spares=100, save_every_s=900)
    scenario = scenario_of(cluster, days=40)
    described = setup_of(cluster, policy, scenario)
    assert described.settings.seats == 3
    assert described.settings.limits == UNLIMITED
    runs = [World(described, draw(scenario, seed, 100)).run() for seed in range(4)]
    from closeranks.plan.job_times import times_of, waste_at

    expected = 1 - waste_at(cluster, times_of(cluster, scenario.mtbf_s), scenario.mtbf_s, 900)
    found = estimate([run.goodput for run in runs])
    assert found.low - 0.002 < expected < found.high + 0.002


def test_the_save_controller_chooses_where_the_policy_does_not():
    cluster = cluster_of({**RAW, "saving": {"write_s": 30.0}})
    scenario = scenario_of(cluster, days=10)
    work = Work(scenario=scenario, setups=(setup_of(cluster, Policy(name="auto", spares=20), scenario),))
    (found,) = replica(work, 1)
    # The pause of 30 s and an MTBF of half a day or so: the optimum is about half an hour.
    saves = found.seconds["pauses for saves"] / 30.0
    assert 10 * 24 / 1.0 < saves < 10 * 24 / 0.2


def test_a_hang_is_found_sooner_by_a_detector_that_may_look_sooner():
    assert sight(Bounds(), 2.0, 100).allowed_s == pytest.approx(20.0)
    assert sight(Bounds(), 0.05, 100).allowed_s == pytest.approx(2.0)
    assert sight(Bounds(ceiling_s=5.0), 2.0, 100).allowed_s == pytest.approx(5.0)
    assert sight(Bounds(), 2.0, 0).allowed_s == pytest.approx(60.0)


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042)])
def test_quantiles_of_students_law(freedom, expected):
    assert student_t(freedom) == pytest.approx(expected, rel=3e-3)


def test_one_replica_has_no_interval():
    assert estimate([0.5]).high == np.inf
    assert estimate([1.0, 1.0]).low == 1.0


def test_the_twin_of_a_run_learns_its_times_and_loses_what_it_lost():
    real = setup(tiers=())
    _, records = records_of(real, [crash(50.3, seat=2), strike(Kind.HANG, 80.6, seat=1)])
    _, others = records_of(real, [crash(30.7, seat=1)])
    timing = timing_seen(others)
    assert timing.connect_s == pytest.approx(real.timing.connect_s)
    assert timing.detect_s == pytest.approx(real.timing.detect_s)
    found = twin_of(records, timing)
    _, virtual = records_of(found.setup, found.strikes)
    assert all(row.off < 0.1 for row in beside(records, virtual))


def test_a_run_without_an_incident_teaches_no_times():
    _, records = records_of(setup(), [])
    with pytest.raises(PlanInputError, match="calibrate with a drill"):
        timing_seen(records)
