import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.decide.save_interval import (
    LEAST_S,
    Cost,
    EverySeconds,
    EverySteps,
    Losses,
    Prior,
    choose,
    history_of,
    judge,
    mtbf_of,
    prior_of,
    spell,
)
from closeranks.plan.reliability_file import Process, Rate, Reliability, Source

DAY_S = 86_400.0


def cost(pause_s=1.0, write_s=20.0, *, slowdown=0.0, step_s=1.0, settled=True):
    return Cost(pause_s=pause_s, settled=settled, durable_s=write_s, busy_s=write_s, slowdown=slowdown, step_s=step_s)


def test_the_interval_is_youngs_for_the_pause():
    choice = choose(cost(), DAY_S, None)
    assert choice.interval_s == pytest.approx(math.sqrt(2 * 1.0 * DAY_S))
    assert "a save costs 1 s" in choice.reason


def test_what_a_write_slows_down_is_a_cost_too():
    assert choose(cost(slowdown=0.1), DAY_S, None).interval_s == pytest.approx(math.sqrt(2 * 3.0 * DAY_S))


def test_a_long_write_bounds_the_interval():
    choice = choose(cost(write_s=900.0), DAY_S, None)
    assert (choice.interval_s, choice.reason) == (900.0, "bounded by a write of 15 min")


def test_a_tiny_job_does_not_flood_the_log_of_its_store():
    choice = choose(cost(pause_s=1e-4, write_s=0.01), DAY_S, None)
    assert choice.interval_s == LEAST_S
    assert "nothing shorter unless asked for" in choice.reason


def test_a_step_is_the_shortest_interval_and_said_to_be():
    choice = choose(cost(step_s=600.0), DAY_S, None)
    assert (choice.interval_s, choice.reason) == (600.0, "every step, of 10 min; 6.93 min would lose least")


def test_the_first_pause_is_not_trusted_for_long():
    assert choose(cost(pause_s=30.0, settled=False), DAY_S, None).interval_s == 600.0


def test_a_promise_shortens_the_interval_by_what_a_write_takes():
    choice = choose(cost(), DAY_S, 120.0)
    assert (choice.interval_s, choice.rpo_kept) == (95.0, True)  # a write of 20 s may take a quarter more
    assert choice.reason == "bound by the RPO of 120 s; 6.93 min would lose least"


def test_a_promise_is_kept_even_below_the_least_interval():
    assert choose(cost(pause_s=0.001, write_s=2.0), DAY_S, 10.0).interval_s == 7.5


def test_a_promise_that_a_write_makes_impossible_is_said_and_saving_goes_on_without_a_break():
    choice = choose(cost(write_s=45.0), DAY_S, 60.0)
    assert (choice.interval_s, choice.rpo_kept) == (45.0, False)
    assert choice.reason == (
        "the RPO of 60 s cannot be kept, up to 90 s can be lost: a write takes 45 s; write faster, to a nearer tier, "
        "or promise less; saving without a break"
    )


def test_a_promise_that_long_steps_make_impossible_names_the_step():
    choice = choose(cost(step_s=600.0), DAY_S, 300.0)
    assert not choice.rpo_kept
    assert "a step takes 10 min, a write 20 s; make steps shorter or promise less" in choice.reason


@given(st.floats(0, 100), st.floats(1e-3, 1e4), st.floats(1, 1e7), st.floats(0.1, 1e5) | st.none(), st.floats(0, 1e3))
def test_every_choice_can_be_carried_out_and_a_promise_said_to_be_kept_is(pause_s, write_s, mtbf_s, rpo_s, step_s):
    choice = choose(cost(pause_s, write_s, step_s=step_s), mtbf_s, rpo_s)
    assert choice.interval_s >= max(write_s, step_s) * (1 - 1e-9)
    if rpo_s is not None:
        assert choice.rpo_kept == (max(write_s, step_s) + write_s <= rpo_s) or math.isclose(
            max(write_s, step_s) + write_s, rpo_s
        )
        assert not choice.rpo_kept or choice.interval_s + write_s <= rpo_s * (1 + 1e-9)


def test_what_the_user_set_is_compared_with_what_would_lose_least():
    choice = judge(EverySteps(steps=50), cost(), DAY_S, None)
    assert (choice.interval_s, choice.reason) == (50.0, "as asked, every 50 steps; 6.93 min would lose least")


def test_what_the_user_set_and_cannot_have_is_said():
    choice = judge(EverySteps(steps=5), cost(), DAY_S, None)
    assert (choice.interval_s, choice.rpo_kept) == (20.0, True)
    assert choice.reason == "every 5 steps was asked for, but a write takes 20 s: as often as that allows"


def test_what_the_user_set_may_break_what_the_user_promised():
    choice = judge(EverySeconds(seconds=600.0), cost(), DAY_S, 120.0)
    assert not choice.rpo_kept
    assert choice.reason.startswith("the RPO of 120 s is not kept: up to 10.3 min can be lost; as asked, every 10 min")


@pytest.mark.parametrize("make", [lambda: EverySteps(steps=0), lambda: EverySeconds(seconds=float("nan"))])
def test_an_interval_that_is_none_cannot_be_made(make):
    with pytest.raises(ValueError, match="save interval: expected"):
        make()


def test_without_any_history_the_prior_is_the_mtbf_and_is_stated():
    mtbf_s, source = mtbf_of(prior_of(1), (Losses(),))
    assert mtbf_s == pytest.approx(DAY_S / 1.0065)
    assert source == "assumed for 1 node: 23.8 h"


def test_more_nodes_fail_more_often():
    assert prior_of(2000).mtbf_s == pytest.approx(DAY_S / 14)


def test_losses_shorten_the_mtbf_and_quiet_time_lengthens_it():
    prior = Prior(mtbf_s=3600.0, source="p")
    assert mtbf_of(prior, (Losses(count=3, watched_s=3600.0),))[0] == 1800.0
    assert mtbf_of(prior, (Losses(watched_s=7200.0),))[0] == 10_800.0


def test_history_of_a_fitted_trace_is_scaled_to_the_job_and_follows_its_newest_stretch():
    rate = Rate(mtbf_h=100.0, low_h=50.0, high_h=200.0, failures=10)
    newest = Rate(mtbf_h=20.0, low_h=10.0, high_h=40.0, failures=5)
    source = Source(
        file="cluster.csv", kind="csv", from_utc="", to_utc="", failures=10, events=10, units=8, unit_exposure_h=1000.0
    )
    process = Process(one_process=True, verdict="", current=newest, current_from_utc="")
    known = Reliability(format=1, source=source, unit=rate, process=process)
    assert history_of(known, 4) == Losses(count=10, watched_s=1000 * 3600 / 4, source="cluster.csv")
    changed = Reliability(
        format=1,
        source=source,
        unit=rate,
        process=Process(one_process=False, verdict="", current=newest, current_from_utc=""),
    )
    assert history_of(changed, 4) == Losses(count=5, watched_s=100 * 3600 / 4, source="cluster.csv")


def test_a_trace_without_a_loss_counts_as_quiet_time():
    none = Rate(mtbf_h=math.inf, low_h=300.0, high_h=math.inf, failures=0)
    source = Source(
        file="quiet.csv", kind="csv", from_utc="", to_utc="", failures=0, events=0, units=8, unit_exposure_h=1000.0
    )
    process = Process(one_process=True, verdict="", current=none, current_from_utc="")
    history = history_of(Reliability(format=1, source=source, unit=none, process=process), 4)
    assert history == Losses(count=0, watched_s=900_000.0, source="quiet.csv")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.3123, "0.312 s"), (299.0, "299 s"), (300.0, "5 min"), (7200.0, "2 h"), (1e8, "27,778 h")]
)
def test_a_time_is_spelt_for_people(seconds, text):
    assert spell(seconds) == text
