import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from save_world import Job

from closeranks.decide import saving
from closeranks.decide.save_interval import EverySeconds, EverySteps, Losses
from closeranks.decide.saving_protocol import (
    EndComing,
    IntervalChosen,
    LossSeen,
    SaveCommitted,
    SaveFailed,
    SaveFreed,
    SaveHeldBack,
    SaveLost,
    SavingBegan,
    SnapshotDropped,
    SnapshotTaken,
    StepPassed,
    TakeSnapshot,
)

# --- the first save, and the interval ---------------------------------------------------------------------------


def test_the_first_save_comes_soon_after_the_first_steps_to_measure_it():
    job = Job().run(3)
    assert [step for _, step in job.taken] == [2]
    assert job.said(TakeSnapshot)[0].reason == "the first one, to measure what a save takes"


def test_long_steps_do_not_delay_the_first_save_until_the_third():
    assert [step for _, step in Job(step_s=600.0).run(2).taken] == [1]


def test_without_history_the_interval_follows_the_stated_prior_and_is_said_with_its_reason():
    chosen = Job(pause_s=1.0, write_s=lambda _: 20.0).run(1500).said(IntervalChosen)
    assert chosen[0].interval_s == pytest.approx(math.sqrt(2 * 2 * 86_400), rel=0.01)  # 5 % slowdown are assumed
    assert chosen[0].reason == ("a save costs 2 s; one loss in 24 h (of the test: 24 h; this run: 0 in 24 s)")
    assert chosen[0].steps == round(chosen[0].interval_s)


def test_the_pause_of_a_save_is_no_slowdown_by_its_write_as_well():
    """It lies between two closes: counted as both, it made the interval half as long again."""
    costs = [
        chosen.reason for chosen in Job(step_s=20.0, pause_s=2.0, write_s=lambda _: 30.0).run(600).said(IntervalChosen)
    ]
    assert costs[-1].startswith("a save costs 2 s;")


def test_saves_follow_each_other_at_the_chosen_interval():
    job = Job(pause_s=1.0, write_s=lambda _: 20.0).run(4000)
    wanted_s = job.state.choice.interval_s
    assert all(gap == pytest.approx(wanted_s, rel=0.2) for gap in job.gaps_s()[1:])
    assert len(job.gaps_s()) >= 5


def test_history_of_the_cluster_shortens_the_interval():
    history = Losses(count=99, watched_s=86_400.0, source="cluster.csv")
    calm, rough = Job().run(100), Job(history=history).run(100)
    assert rough.state.choice.interval_s < calm.state.choice.interval_s / 5
    assert "cluster.csv: 99 in 24 h" in rough.said(IntervalChosen)[0].reason


def test_cold_losses_of_this_run_shorten_the_interval_and_warm_ones_do_not():
    job = Job(pause_s=1.0).run(100)
    job.tell(LossSeen(cold=True))
    once_s = job.state.choice.interval_s
    for cold in (False, True, True, True, False, True, True, True):
        job.tell(LossSeen(cold=cold))
    assert job.state.choice.interval_s == pytest.approx(once_s / 2, rel=0.01)  # 2 become 8, the prior's one included
    assert "(of the test: 24 h; this run: 6 in 101 s)" in job.said(IntervalChosen)[-1].reason


def test_a_slowdown_beside_a_write_is_measured_and_lengthens_the_interval():
    def interval_s(beside_s):
        job = Job(pause_s=0.5, write_s=lambda _: 20.0)
        for _ in range(1000):
            job.step_s = beside_s if job.state.writing else 1.0
            job.run(1)
        return job.state.choice.interval_s

    assert interval_s(1.5) > 2 * interval_s(1.0)


def test_the_first_pause_with_its_new_arena_does_not_rule():
    job = Job(pause_s=60.0, write_s=lambda _: 5.0).run(10)
    job.pause_s = 0.1
    job.run(2000)
    assert job.state.choice.interval_s < 300
    assert job.gaps_s()[0] == pytest.approx(600.0, rel=0.1)


def test_write_times_that_vary_threefold_do_not_flood_the_journal():
    draw = random.Random(7)
    job = Job(step_s=1.0, pause_s=0.05, write_s=lambda _: draw.uniform(10.0, 30.0)).run(20_000)
    assert len(job.taken) > 100
    assert len(job.said(IntervalChosen)) <= 6
    assert len(job.said(SaveHeldBack)) <= 3


def test_one_slow_write_is_no_rule():
    job = Job(pause_s=0.05, write_s=lambda n: 400.0 if n == 6 else 10.0).run(5000)
    assert job.state.choice.interval_s < 120


# --- steps of any length ----------------------------------------------------------------------------------------


def test_short_steps_are_asked_for_early_enough_to_reach_every_seat():
    job = Job(step_s=0.01, pause_s=0.001, write_s=lambda _: 0.5).run(12_000)
    leads = [
        decision.step - round((at_s - 1000.0) / 0.01) + 1
        for at_s, decision in job.decisions
        if isinstance(decision, TakeSnapshot)
    ]
    assert min(leads[1:]) >= 24
    assert job.state.choice.interval_s == 15.0
    assert all(gap == pytest.approx(15.0, abs=0.1) for gap in job.gaps_s()[1:])


def test_steps_longer_than_the_interval_are_all_saved():
    job = Job(step_s=600.0, pause_s=1.0, write_s=lambda _: 60.0).run(12)
    assert [step for _, step in job.taken] == list(range(1, 12))


def test_the_interval_is_rounded_to_the_nearest_step():
    job = Job(step_s=200.0, pause_s=1.0, write_s=lambda _: 5.0).run(100)  # about 465 s: two steps, not three
    assert {round(gap / 200) for gap in job.gaps_s()[2:]} == {2}


# --- promises ---------------------------------------------------------------------------------------------------


def lost_at_worst_s(job):
    """The longest time from a snapshot to the commit of the next one."""
    taken = {step: at_s for at_s, step in job.taken}
    return max(after_s - taken[before] for (_, before), (after_s, _) in zip(job.durable, job.durable[1:], strict=False))


@pytest.mark.parametrize("step_s", [0.01, 0.7, 13.0])
def test_a_promise_is_kept_whatever_the_steps(step_s):
    draw = random.Random(1)
    job = Job(step_s=step_s, write_s=lambda _: draw.uniform(6.0, 7.0), rpo_s=60.0).run(int(1200 / step_s))
    assert job.said(IntervalChosen)[-1].rpo_kept
    assert lost_at_worst_s(job) <= 60.0


def test_a_promise_that_cannot_be_kept_is_said_once_and_saves_follow_without_a_break():
    job = Job(write_s=lambda _: 45.0, rpo_s=60.0).run(1000)
    assert [chosen.rpo_kept for chosen in job.said(IntervalChosen)] == [False]
    assert "a write takes 45" in job.said(IntervalChosen)[0].reason
    assert max(job.gaps_s()[1:]) < 48.0


def test_a_promise_that_can_be_kept_again_is_said():
    job = Job(write_s=lambda n: 45.0 if n < 3 else 5.0, rpo_s=60.0).run(1500)
    kept = [chosen.rpo_kept for chosen in job.said(IntervalChosen)]
    assert [key for key, _ in itertools.groupby(kept)] == [False, True]


# --- what the user sets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [0.01, 1.0, 600.0])
def test_an_interval_in_steps_is_kept_to_the_step(step_s):
    job = Job(step_s=step_s, write_s=lambda _: 0.2, every=EverySteps(steps=100)).run(1000)
    assert [step for _, step in job.taken] == [99, 199, 299, 399, 499, 599, 699, 799, 899, 999]


def test_an_interval_in_steps_counts_from_the_first_step_of_the_job_also_after_a_resume():
    job = Job(first_step=149, durable=True, write_s=lambda _: 0.2, every=EverySteps(steps=100)).run(200)
    assert [step for _, step in job.taken] == [199, 299]


def test_an_interval_in_seconds_is_kept():
    job = Job(every=EverySeconds(seconds=60.0)).run(400)
    assert all(gap == pytest.approx(60.0, abs=1.2) for gap in job.gaps_s())
    assert "as asked, every 60 s" in job.said(IntervalChosen)[0].reason


def test_saves_after_every_step_go_as_fast_as_the_writes_and_this_is_said():
    job = Job(every=EverySteps(steps=1), write_s=lambda _: 10.0).run(500)
    assert "every 1 steps was asked for, but a write takes 10" in job.said(IntervalChosen)[0].reason
    assert max(job.gaps_s()) < 13.0
    assert len(job.said(SaveHeldBack)) <= 5


# --- back-pressure and failures ---------------------------------------------------------------------------------


def test_nothing_is_taken_while_the_last_save_is_being_written():
    job = Job(every=EverySeconds(seconds=10.0), write_s=lambda _: 35.0).run(300)
    for (_, step), (later_s, _) in itertools.pairwise(job.taken):
        assert later_s > next(at_s for at_s, durable in job.durable if durable == step)


def test_arenas_that_are_freed_before_the_commit_do_not_end_the_save():
    job = Job(write_s=lambda _: 1e9).run(3)
    job.tell(SaveFreed(step=2))
    job.run(100)
    assert len(job.taken) == 1
    job.tell(SaveCommitted(step=2))
    assert job.state.durable_step == 2
    assert job.state.writing == ()


def test_a_write_that_never_ends_is_said_and_again_at_each_doubling():
    job = Job(pause_s=0.05, write_s=lambda n: 5.0 if n < 3 else 1e9).run(6000)
    held = job.said(SaveHeldBack)
    assert 3 <= len(held) <= 10
    assert [after.late_s >= 2 * before.late_s for before, after in itertools.pairwise(held)] == [True] * (len(held) - 1)
    assert "has been written for" in held[0].reason
    assert "usually 5 s" in held[0].reason
    assert "of training are not durable" in held[0].reason


def test_a_failed_save_is_said_loudly_and_tried_again_with_backoff():
    job = Job(write_s=lambda n: "No space left on device" if n < 5 else 2.0).run(300)
    lost = job.said(SaveLost)
    assert [one.failures for one in lost] == [1, 2, 3, 4, 5]
    assert [one.retry_s for one in lost] == [5.0, 10.0, 20.0, 40.0, 80.0]
    assert {one.problem for one in lost} == {"No space left on device"}
    assert [gap == pytest.approx(one.retry_s + 2, abs=2) for gap, one in zip(job.gaps_s(), lost, strict=False)] == [
        True
    ] * 5
    assert job.durable[0][1] == job.taken[5][1]


def test_after_a_success_the_backoff_begins_anew():
    job = Job(every=EverySeconds(seconds=30.0), write_s=lambda n: "EIO" if n in {0, 1, 4} else 2.0).run(400)
    assert [one.retry_s for one in job.said(SaveLost)] == [5.0, 10.0, 5.0]


def test_a_loud_loss_says_what_is_at_risk():
    job = Job(every=EverySeconds(seconds=100.0), write_s=lambda n: "EIO" if n == 1 else 2.0).run(250)
    lost = job.said(SaveLost)[0]
    assert lost.durable_step == job.taken[0][1]
    assert lost.at_risk_s == pytest.approx(101.0, abs=3)


def test_a_store_that_stays_full_is_tried_at_most_every_ten_minutes_for_ever():
    job = Job(step_s=5.0, write_s=lambda _: "disk quota exceeded").run(5000)
    assert max(job.gaps_s()) == pytest.approx(605, abs=10)
    assert len(job.said(SaveLost)) < 60


def test_a_failure_of_a_save_that_is_not_known_changes_nothing():
    job = Job().run(5)
    before = job.state
    assert job.tell(SaveFailed(step=77, problem="stale")) == ()
    assert job.state == before


# --- losses in the middle ---------------------------------------------------------------------------------------


def test_a_loss_in_mid_snapshot_drops_it_and_the_next_is_asked_for_at_once():
    job = Job(every=EverySteps(steps=100)).run(99)
    assert job.asked.step == 99
    job.tell(LossSeen(cold=False))
    job.asked = None
    job.run(1)
    assert job.asked.step == 100
    assert job.asked.reason == "again: a loss came in the middle of the last attempt"


def test_a_snapshot_that_was_dropped_is_taken_soon_after():
    job = Job(every=EverySteps(steps=100)).run(99)
    job.tell(SnapshotDropped(step=99, reason="seat 2 has no memory for it"))
    job.asked = None
    job.run(1)
    assert job.asked.step == 100
    assert job.asked.reason == "again: the last attempt was dropped: seat 2 has no memory for it"


def test_a_snapshot_that_nobody_answers_is_a_failure_after_a_while():
    job = Job(every=EverySteps(steps=10)).run(9)
    job.asked = None  # the seats never hear of it
    job.run(75)
    assert "the seats have not answered for" in job.said(SaveLost)[0].problem
    assert len(job.taken) >= 1


def test_a_cold_restart_from_a_checkpoint_begins_the_interval_anew():
    job = Job(every=EverySeconds(seconds=100.0)).run(150)
    job.tell(SavingBegan(step=98, durable=True))
    job.closed, job.asked = 98, None
    restarted_s = job.now_s
    job.run(120)
    assert job.taken[-1][0] - restarted_s == pytest.approx(100, abs=3)


def test_a_save_from_before_a_cold_restart_may_still_become_durable():
    job = Job(write_s=lambda _: 50.0).run(5)
    job.tell(SavingBegan(step=-1, durable=False))
    job.closed, job.asked = -1, None
    job.run(60)
    assert job.state.durable_step == 2


# --- the end ----------------------------------------------------------------------------------------------------


def test_the_end_is_saved_once_at_its_step():
    job = Job().run(20)
    assert [d.step for d in job.tell(EndComing(step=20, why="completed"))] == [20]
    assert job.tell(EndComing(step=20, why="completed")) == ()
    job.run(1)
    assert job.taken[-1][1] == 20
    assert job.tell(EndComing(step=20, why="completed")) == ()


def test_the_end_is_saved_even_while_the_last_save_is_being_written():
    job = Job(write_s=lambda _: 1000.0).run(20)
    (final,) = job.tell(EndComing(step=20, why="SIGTERM", notice_s=30.0))
    assert (final.step, final.final) == (20, True)


def test_an_end_that_is_saved_already_is_not_saved_again():
    job = Job(write_s=lambda _: 1000.0).run(3)
    assert job.taken[-1][1] == 2
    assert job.tell(EndComing(step=2, why="SIGTERM")) == ()
    resumed = Job(first_step=500, durable=True)
    assert resumed.tell(EndComing(step=500, why="completed")) == ()


def test_the_end_takes_the_place_of_a_save_that_was_asked_for_later():
    job = Job(every=EverySteps(steps=10), step_s=0.01).run(9)
    assert job.asked.step > 9
    (final,) = job.tell(EndComing(step=9, why="SIGTERM"))
    assert (final.step, job.state.asked.step) == (9, 9)


def test_a_notice_shorter_than_a_write_is_said_and_tried():
    job = Job(write_s=lambda _: 45.0).run(100)
    (final,) = job.tell(EndComing(step=100, why="SIGTERM", notice_s=30.0))
    assert final.reason == (
        "the run ends after step 100 (SIGTERM); a write takes up to 45 s, the notice is 30 s: it may not be done"
    )


def test_no_other_save_is_asked_for_once_the_end_is_near():
    job = Job(every=EverySteps(steps=2)).run(20)
    job.tell(EndComing(step=30, why="completed"))
    count = len(job.taken)
    job.run(10)
    assert len(job.taken) == count
    job.run(1)
    assert job.taken[-1][1] == 30


def test_a_final_save_that_fails_is_said_and_not_tried_again():
    job = Job(write_s=lambda _: "EIO").run(1)
    job.tell(EndComing(step=1, why="completed"))
    job.run(1)
    job.pass_time(5.0)
    assert job.said(SaveLost)[-1].retry_s == 0.0


def test_a_loss_at_the_very_end_lets_the_final_save_be_asked_for_again():
    job = Job().run(20)
    job.tell(EndComing(step=20, why="completed"))
    job.tell(LossSeen(cold=False))
    assert [d.step for d in job.tell(EndComing(step=20, why="completed"))] == [20]


@pytest.mark.parametrize("wrong", [{"rpo_s": 0.0}, {"rpo_s": math.nan}, {"lead_s": -1.0}, {"lead_s": math.inf}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="expected a time"):
        saving.Settings(**wrong)


# --- any order of facts -----------------------------------------------------------------------------------------

steps = st.integers(-1, 6)
FACTS = st.one_of(
    st.builds(SavingBegan, step=steps, durable=st.booleans()),
    st.builds(StepPassed, step=steps, period_s=st.sampled_from([0.0, 0.01, 1.0, 600.0])),
    st.builds(SnapshotTaken, step=steps, pause_s=st.sampled_from([0.0, 0.1, 10.0])),
    st.builds(SnapshotDropped, step=steps, reason=st.just("r")),
    st.builds(SaveCommitted, step=steps),
    st.builds(SaveFreed, step=steps),
    st.builds(SaveFailed, step=steps, problem=st.just("p")),
    st.builds(LossSeen, cold=st.booleans()),
    st.builds(EndComing, step=steps, why=st.just("w"), notice_s=st.none() | st.just(30.0)),
)
SETTINGS = st.builds(
    saving.Settings,
    every=st.none() | st.just(EverySteps(steps=2)) | st.just(EverySeconds(seconds=5.0)),
    rpo_s=st.none() | st.sampled_from([1.0, 1000.0]),
)


@settings(max_examples=300, deadline=None)
@given(SETTINGS, st.lists(st.tuples(FACTS, st.sampled_from([0.0, 0.5, 30.0, 4000.0])), max_size=40))
def test_no_order_of_facts_breaks_the_controller_or_asks_twice_or_fills_a_third_arena(chosen, facts):
    state, now_s = saving.initial(chosen), 0.0
    for fact, passed_s in facts:
        now_s += passed_s
        before = state
        state, decisions = saving.step(before, fact, now_s)
        again, same = saving.step(before, fact, now_s)
        assert (state, decisions) == (again, same)
        taken = [decision for decision in decisions if isinstance(decision, TakeSnapshot)]
        assert len(taken) <= 1
        for decision in taken:
            assert decision.reason
            assert decision.final == isinstance(fact, EndComing)
            assert decision.final or (before.asked is None and not state.writing and decision.step > state.closed_step)
