"""A slow seat of a virtual run is named by the real detector, and nobody else is."""

import msgspec
import pytest
from tests.simulate.virtual import QUICK, crash, events_of, play, setup, strike

from closeranks.events import StepClosed, StragglerEased, StragglerNamed
from closeranks.observe.health import health_of
from closeranks.simulate.run import recorded, records_of
from closeranks.simulate.storm import episode
from closeranks.simulate.strikes import Kind

BEGIN_S = QUICK.start_s + QUICK.connect_s + QUICK.load_s
TOLD = (StragglerNamed, StragglerEased)


def slow(at_step, factor=1.15, **more):
    return strike(Kind.STRAGGLER, BEGIN_S + at_step, factor=factor, **{"lasts_s": 80.0, "seat": 2, **more})


def told(described, *strikes):
    return [(type(event), event.seats) for event in events_of(described, strikes, TOLD)]


@pytest.mark.parametrize("at_step", [0.0, 7.5, 43.2, 101.9])
def test_a_seat_that_is_15_percent_slower_is_named_within_30_steps(at_step):
    named, eased = events_of(setup(until=300), [slow(at_step)], TOLD)
    assert named.seats == eased.seats == (2,)
    assert at_step < named.step < at_step + 30
    assert named.slower == pytest.approx(0.15, abs=0.05)
    over = at_step + 80 / 1.15
    assert over < eased.step < over + 40


def test_a_report_shows_from_when_to_when_it_was_slow():
    _, records = records_of(setup(until=300), [slow(40)])
    (found,) = health_of(records).stragglers
    assert found.where == "seat 2"
    assert 40 < found.from_step < 70 < found.until_step < 150


def test_a_seat_is_not_slow_for_longer_than_its_process_lives():
    lost = setup(replicated=False, spares=0, until=300)
    faults = [slow(40, lasts_s=62.0), crash(BEGIN_S + 101.5, seat=1)]  # the slow time ends while nobody trains
    _, records = records_of(lost, faults)
    (found,) = health_of(records).stragglers
    last = max(one.event.step for one in records if isinstance(one.event, StepClosed) and not one.event.repeated)
    assert found.from_step < found.until_step < last
    assert told(lost, *faults) == [(StragglerNamed, (2,))]
    _, records = records_of(setup(until=90), [slow(40, lasts_s=500.0)])
    (found,) = health_of(records).stragglers
    assert found.until_step is None  # to the end of the run


def test_nobody_is_named_in_a_run_without_a_straggler():
    assert told(setup(until=300), crash(40.3), strike(Kind.HANG, 90.6, seat=1)) == []


@pytest.mark.parametrize("factor", [1.0, 1.03])
@pytest.mark.parametrize("at_step", range(10, 60, 10))
def test_nobody_is_named_for_the_jitter_of_a_step(factor, at_step):
    assert told(setup(until=150), slow(at_step, factor)) == []


def test_who_takes_the_seat_of_a_slow_process_is_named_anew():
    found = told(setup(until=300), slow(20), crash(BEGIN_S + 60.3, seat=2))
    assert found == [(StragglerNamed, (2,)), (StragglerNamed, (2,)), (StragglerEased, (2,))]


def test_a_process_alone_has_nobody_to_be_compared_with():
    assert told(setup(seats=1, until=300), slow(20, 3.0, seat=0)) == []


def test_a_second_slow_time_is_told_like_the_first():
    twice = told(setup(until=600), slow(20), slow(300, seat=1))
    assert twice == [(kind, (seat,)) for seat in (2, 1) for kind in TOLD]


def test_a_job_of_many_nodes_and_a_journal_that_skips_steps_tell_it_too():
    described = setup(seats=3, nodes=2048, spare_nodes=4, until=0, horizon_s=9_000.0, every_step=False)
    assert told(described, slow(2_000, 2.0, seat=1_700, lasts_s=600.0)) == [(kind, (0,)) for kind in TOLD]


def test_whoever_is_named_in_a_storm_was_slow_and_a_journal_changes_nothing():
    named = 0
    for seed in range(80):
        found = episode(seed)
        described = msgspec.structs.replace(found.setup, step_s=0.3, until=400)  # a slow time has steps enough
        outcome, records = records_of(described, found.strikes)
        struck = {one.seat for one in found.strikes if one.kind is Kind.STRAGGLER}
        seats = {seat for one in records if isinstance(one.event, StragglerNamed) for seat in one.event.seats}
        alone = play(described, *found.strikes)
        assert (outcome.outcome, outcome.reason, outcome.steps) == (alone.outcome, alone.reason, alone.steps)
        assert outcome.wall_s == pytest.approx(alone.wall_s)
        if described.nodes <= described.settings.seats:  # else a seat stands for many nodes
            assert seats <= struck
            named += len(seats)
    assert named


def test_the_same_run_writes_the_same_bytes():
    lines = [[], []]
    for one in lines:
        recorded(setup(until=300), [slow(20), crash(BEGIN_S + 60.3, seat=2)], one.append, name="r", version="0")
    assert lines[0] == lines[1]
    assert any(b"StragglerNamed" in line for line in lines[0])
