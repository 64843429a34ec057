"""What faults do to a virtual run, as the real controller meets them."""

import numpy as np
import pytest
from tests.simulate.virtual import QUICK, crash, events_of, play, setup, strike

from closeranks.decide.budgets import Limits
from closeranks.decide.save_interval import EverySteps
from closeranks.decide.state import Settings
from closeranks.events import CheckpointCommitted, Diagnosed, ErrorSeen, StateLoaded
from closeranks.observe.goodput import ledger_of
from closeranks.plan.interval import wall_time_s
from closeranks.simulate.book import Part
from closeranks.simulate.policy import UNLIMITED
from closeranks.simulate.run import records_of
from closeranks.simulate.saves import Tier
from closeranks.simulate.setup import Setup
from closeranks.simulate.strikes import Kind, Scope
from closeranks.simulate.timing import Timing

BEGIN_S = QUICK.start_s + QUICK.connect_s + QUICK.load_s


def test_an_undisturbed_run_takes_its_steps_and_its_pauses():
    found = play(setup(pause_s=0.5))
    assert found.outcome == "completed"
    assert found.wall_s == pytest.approx(BEGIN_S + 100 + 9 * 0.5 + 0.5)
    assert found.seconds[Part.SAVING] == pytest.approx(5)


def test_a_spare_takes_the_seat_of_a_lost_process_and_no_step_is_lost():
    found = play(setup(), crash(50.3, seat=2))
    assert found.rungs == {"replace from a spare": 1}
    assert found.steps_lost == 0
    # Seen, interrupted, connected, given the state: and the attempt that was open is made again.
    open_s = (50.3 - BEGIN_S) % 1
    assert found.wall_s == pytest.approx(BEGIN_S + 100 + open_s + 0.25 + 0.25 + 0.5 + 0.5)


def test_without_a_second_copy_the_group_goes_back_to_its_newest_save():
    found = play(setup(replicated=False), crash(BEGIN_S + 57.5))
    assert found.rungs == {"cold restart": 1}
    assert found.steps_lost == 7
    assert found.seconds[Part.REPEATED] == pytest.approx(7)
    assert found.worst_loss_s == pytest.approx(7.5)


def test_without_saves_the_group_begins_again():
    found = play(setup(replicated=False, tiers=()), crash(BEGIN_S + 57.5))
    assert found.seconds[Part.REPEATED] == pytest.approx(57)


@pytest.mark.parametrize(("survives", "repeated_s"), [(Scope.PROCESS, 17), (Scope.NODE, 7)])
def test_a_tier_survives_losses_up_to_its_scope(survives, repeated_s):
    tiers = (Tier(name="memory", survives=survives), Tier(every=2))
    lost = strike(Kind.NODE, BEGIN_S + 57.5, nodes=(1,), lasts_s=60.0)
    found = play(setup(replicated=False, tiers=tiers, every=10, nodes=4, spare_nodes=1), lost)
    # The store has every second snapshot: steps 19 and 39; memory has the one of step 49.
    assert found.seconds[Part.REPEATED] == pytest.approx(repeated_s)


def test_a_save_that_is_still_being_written_is_lost_with_the_group():
    written_late = (Tier(write_s=5.0),)
    found = play(setup(replicated=False, tiers=written_late), crash(BEGIN_S + 52.5))
    assert found.seconds[Part.REPEATED] == pytest.approx(12)


def test_the_real_detector_finds_a_hang_after_ten_times_a_step():
    described = setup()
    hang = strike(Kind.HANG, BEGIN_S + 60.5, seat=1, answers=True)
    (seen,) = events_of(described, [hang], ErrorSeen)
    assert seen.detector == "progress"
    assert seen.allowed_s == pytest.approx(10.0)
    assert play(described, hang).seconds[Part.DETECT] == pytest.approx(10.35)


@pytest.mark.parametrize(("at_s", "phase"), [(1.0, "start-up"), (BEGIN_S + 60.5, "a step"), (51.0, "a recovery")])
def test_the_roll_call_finds_who_is_frozen_within_six_seconds_in_any_phase(at_s, phase):
    frozen = strike(Kind.HANG, at_s, seat=1)
    losses = [crash(50.3, seat=2)] if phase == "a recovery" else []
    (seen,) = [event for event in events_of(setup(), [*losses, frozen], ErrorSeen) if event.allowed_s is not None]
    assert seen.allowed_s == pytest.approx(4.0)
    assert "does not answer" in seen.detail
    found = play(setup(), *losses, frozen)
    assert found.outcome == "completed"
    undisturbed_s = play(setup(), *losses).wall_s
    assert found.wall_s < undisturbed_s + 6 + 6  # until it is told, and a recovery


def test_who_answers_is_left_to_the_deadline_of_its_phase():
    found = play(setup(), strike(Kind.HANG, 1.0, seat=1, answers=True))
    assert found.wall_s > 600


def test_a_partition_is_waited_for_and_mended_by_regrouping_in_place():
    found = play(setup(), strike(Kind.PARTITION, lasts_s=20.0))
    assert found.rungs == {"regroup in place": 1}
    assert found.steps_lost == 0
    assert found.worst_return_s == pytest.approx(20.0)


def test_a_bug_that_comes_back_at_its_step_stops_the_run():
    found = play(setup(), strike(Kind.BUG, 20.0, step=60))
    assert found.outcome == "failed"
    assert "deterministic" in found.reason
    assert found.steps == 60


def test_corruption_is_found_later_and_the_group_goes_back_behind_it():
    described = setup(distrust_s=25.0, until=120)
    corrupt = strike(Kind.CORRUPTION, BEGIN_S + 55.5, lasts_s=22.0)
    found = play(described, corrupt)
    assert found.rungs == {"regroup in place": 1, "roll back": 1}
    assert found.seconds[Part.REPEATED] == pytest.approx(27)  # found after step 76, step 49 was saved before it
    assert [event.step for event in events_of(described, [corrupt], StateLoaded)] == [49]


def test_nothing_becomes_durable_while_the_store_is_down():
    down = strike(Kind.STORAGE_DOWN, BEGIN_S + 25.5, lasts_s=30.0)
    found = play(setup(replicated=False), down, crash(BEGIN_S + 57.5))
    assert found.seconds[Part.REPEATED] == pytest.approx(37)


def test_a_straggler_slows_every_step_while_it_lasts():
    found = play(setup(), strike(Kind.STRAGGLER, BEGIN_S + 20, lasts_s=30.0, factor=3.0))
    assert found.wall_s == pytest.approx(BEGIN_S + 100 + 20)
    assert found.incidents == 0


@pytest.mark.parametrize(("notice_s", "repeated_s"), [(1.0, 7), (30.0, 0)])
def test_a_reclaim_with_enough_notice_loses_nothing(notice_s, repeated_s):
    spot = strike(Kind.SPOT, BEGIN_S + 57.5, nodes=(1,), lasts_s=60.0, notice_s=notice_s)
    described = setup(replicated=False, nodes=4, spare_nodes=1, tiers=(Tier(write_s=5.0),), every=10)
    assert play(described, spot).seconds.get(Part.REPEATED, 0.0) == pytest.approx(repeated_s)


def test_a_domain_is_one_event_however_many_nodes_it_takes():
    rack = strike(Kind.DOMAIN, nodes=(0, 1), lasts_s=30.0)
    found = play(setup(spares=2, nodes=4, spare_nodes=2), rack)
    assert found.incidents == 1
    assert found.rungs["replace from a spare"] == 2


def test_without_a_node_to_spare_the_job_waits_for_the_repair():
    lost = strike(Kind.NODE, BEGIN_S + 50.5, nodes=(1,), lasts_s=500.0)
    found = play(setup(spares=0, replicated=False, nodes=4), lost)
    assert found.outcome == "completed"
    assert found.seconds[Part.NO_NODES] == pytest.approx(500 - QUICK.detect_s - QUICK.end_s)


def test_the_budget_of_restarts_ends_a_run():
    described = setup(replicated=False, limits=Limits(cold_restarts=2))
    found = play(described, *(crash(BEGIN_S + 15.0 * number + 10.5) for number in range(4)))
    assert found.outcome == "failed"
    assert found.rungs == {"cold restart": 2, "stop": 1}


def test_a_broken_promise_is_told_and_breaks_nothing_else():
    found = play(setup(replicated=False, every=40, rpo_s=10.0, rto_s=1.0), crash(BEGIN_S + 35.5))
    assert found.outcome == "completed"
    assert [problem[:4] for problem in found.problems] == ["RPO:", "RTO:"]


@pytest.mark.parametrize(
    ("mtbf_s", "every", "pause_s", "load_s"), [(400, 40, 5, 20), (900, 300, 10, 60), (5000, 90, 4, 0)]
)
def test_exponential_failures_take_as_long_as_the_formula_says(mtbf_s, every, pause_s, load_s):
    at_once = Timing(detect_s=0, end_s=0, pause_s=0, start_s=0, ready_s=0, connect_s=0, load_s=load_s, resume_s=0)
    described = Setup(
        settings=Settings(seats=1, limits=UNLIMITED),
        timing=at_once,
        until=7200,
        replicated=False,
        tiers=(Tier(),),
        every=EverySteps(steps=every),
        pause_s=pause_s,
    )
    walls = []
    for seed in range(25):
        times = np.cumsum(np.random.default_rng(seed).exponential(mtbf_s, 400))
        walls.append(play(described, *(crash(at_s) for at_s in times.tolist())).wall_s - load_s)
    error = np.std(walls, ddof=1) / np.sqrt(len(walls))
    assert abs(np.mean(walls) - wall_time_s(7200, every, pause_s, mtbf_s, load_s)) < 3 * error


def test_the_journal_is_the_same_byte_for_byte_and_its_report_agrees():
    described = setup(replicated=False, pause_s=0.5, tiers=(Tier(write_s=1.5),))
    faults = [crash(50.3, seat=2), strike(Kind.HANG, 80.6, seat=1)]
    outcome, records = records_of(described, faults)
    assert (outcome, records) == records_of(described, faults)
    book = ledger_of(records)
    assert book.ettr == pytest.approx(outcome.goodput, abs=0.01)
    assert book.durable_goodput == pytest.approx(book.goodput)
    assert len(events_of(described, faults, CheckpointCommitted)) >= 10
    assert [event.fault for event in events_of(described, faults, Diagnosed)] == ["process killed", "process frozen"]
