"""The exact interval against its equation at high precision, its limits, and its monotonicity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.plan import (
    background,
    ettr,
    finite,
    interval,
    levels,
    promises,
    recovery_aware,
    regime,
    varying,
    verified,
)
from closeranks.plan.checks import PlanInputError

ratios = st.floats(-12, 2).map(lambda power: 10.0**power)
mtbfs_s = st.floats(10, 1e7)


@pytest.mark.parametrize("power", range(-15, 4))
def test_the_root_has_full_precision_from_1e_minus_15_to_1000(power):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        ratio = 10.0**power
        lambert = mpmath.lambertw(-mpmath.exp(-1 - mpmath.mpf(ratio)))
        rest = -lambert.real
        x, left = interval.exact_root(ratio)
        assert float(abs(mpmath.mpf(float(x)) / (1 - rest) - 1)) < 2e-15
        if ratio < 700:
            assert float(abs(mpmath.mpf(float(left)) / rest - 1)) < 2e-13  # e^-u magnifies by u


@settings(deadline=None)
@given(ratios, mtbfs_s)
def test_no_other_interval_is_better(ratio, mtbf_s):
    write_s = ratio * mtbf_s
    best_s = interval.exact_s(write_s, mtbf_s)
    top = interval.efficiency(best_s, write_s, mtbf_s)
    assert top == pytest.approx(interval.best_efficiency(write_s, mtbf_s), rel=1e-6)
    others = interval.efficiency(best_s * np.array([0.2, 0.9, 1.1, 5.0]), write_s, mtbf_s)
    assert np.all(others <= top * (1 + 1e-9))


@settings(deadline=None)
@given(ratios, mtbfs_s)
def test_the_interval_stays_below_young_and_below_the_mtbf(ratio, mtbf_s):
    best_s = interval.exact_s(ratio * mtbf_s, mtbf_s)
    assert 0 < best_s <= mtbf_s
    assert best_s <= interval.young_s(ratio * mtbf_s, mtbf_s) * (1 + 1e-12)


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 50), min_size=2, max_size=20, unique=True), mtbfs_s)
def test_longer_writes_mean_longer_intervals_and_less_efficiency(folds, mtbf_s):
    writes_s = np.sort(folds) * mtbf_s
    assert np.all(np.diff(interval.exact_s(writes_s, mtbf_s)) >= 0)
    assert np.all(np.diff(interval.best_efficiency(writes_s, mtbf_s)) <= 0)


def test_all_formulas_agree_where_the_write_is_short():
    best_s = interval.exact_s(1e-6, 1.0)
    assert interval.young_s(1e-6, 1.0) == pytest.approx(best_s, rel=1e-3)
    assert interval.daly_first_order_s(1e-6, 1.0) == pytest.approx(best_s, rel=1e-3)
    assert interval.daly_higher_order_s(1e-6, 1.0) == pytest.approx(best_s, rel=1e-9)


def test_a_free_write_is_made_always_and_loses_nothing():
    assert interval.exact_s(0.0, 100.0) == 0
    assert interval.best_efficiency(0.0, 100.0) == 1


@settings(deadline=None)
@given(st.floats(1, 1e4), st.floats(0, 1e3), st.floats(0, 1e3))
def test_restart_and_downtime_cost_but_do_not_move_the_optimum(write_s, restart_s, downtime_s):
    best_s = interval.exact_s(write_s, 13_284.0)
    around = interval.wall_time_s(1e5, best_s * np.array([0.99, 1, 1.01]), write_s, 13_284.0, restart_s, downtime_s)
    assert np.argmin(around) == 1
    assert around[1] >= interval.wall_time_s(1e5, best_s, write_s, 13_284.0) * (1 - 1e-12)


def test_arrays_broadcast():
    got = interval.exact_s(np.array([[37.0], [300.0]]), np.array([3_600.0, 13_284.0, 1e6]))
    assert got.shape == (2, 3)
    assert got[0, 1] == pytest.approx(966.9599200873776, rel=1e-12)


def test_young_is_flagged_where_it_gives_work_away():
    by_name = {answer.name: answer for answer in regime.compare_intervals(600, 1_800)}
    assert by_name["Young"].efficiency == pytest.approx(0.3784, abs=5e-5)
    assert by_name["exact"].efficiency == pytest.approx(0.3889, abs=5e-5)
    assert not by_name["Young"].holds
    assert by_name["Daly higher order"].holds
    assert "out of its regime" in by_name["Young"].reason
    assert all(answer.holds for answer in regime.compare_intervals(37, 13_284))


def test_the_published_ratio_is_flagged_where_it_turns_negative():
    got = ettr.check_ettr(3_600, ettr.rate_per_s(16_384, 0.0065), 300, 60)
    assert got.ettr == pytest.approx(-1.5624043715846994)
    assert got.exact == pytest.approx(0.034, abs=5e-4)
    assert not got.holds
    assert ettr.check_ettr(300, ettr.rate_per_s(200, 0.0065), 60, 5).holds


def test_first_order_waste_is_flagged_past_its_regime():
    assert regime.compare_waste(991.5, 37, 13_284).first_order_holds
    got = regime.compare_waste(30_000, 37, 13_284)
    assert not got.first_order_holds
    assert "more than all time" in got.reason


def test_asynchronous_saving_is_bounded_by_its_write():
    got = background.plan_async(0.05, 37, 13_284)
    assert got.bounded
    assert "bounded by the write" in got.reason
    numeric = background.best_async_interval_s(np.array([2.0, 0.05]), 37.0, 13_284.0)
    assert numeric == pytest.approx(background.async_interval_s(np.array([2.0, 0.05]), 37.0, 13_284.0), rel=1e-6)
    with pytest.raises(PlanInputError, match="writes queue up"):
        background.async_waste(20, 0.05, 37, 13_284)


def test_two_levels_beat_one():
    rate = 1 / 13_284
    assert levels.plan_levels((0.8 * rate, 0.2 * rate), (2, 37)).overhead < interval.waste(967, 37, 13_284)


def test_a_write_that_varies_costs_less_than_its_mean_says():
    samples_s = varying.spread_samples(37, 3)
    fixed_s = varying.equivalent_s(samples_s, 13_284)
    assert 37 < fixed_s < samples_s.mean() == pytest.approx(74)
    assert varying.equivalent_s(np.array([37.0]), 13_284) == pytest.approx(37)


@settings(deadline=None)
@given(st.floats(1, 1e5), st.floats(0, 500), st.booleans())
def test_a_finite_plan_is_the_best_whole_number(work_s, write_s, save_last):
    got = finite.plan_finite(work_s, finite.Conditions(write_s=write_s, mtbf_s=5_000.0, save_last=save_last))
    writes = lambda n: n if save_last else n - 1  # noqa: E731
    walls = [5_000 * n * np.expm1((work_s + writes(n) * write_s) / n / 5_000) for n in range(1, 400)]
    assert got.wall_s <= min(walls) * (1 + 1e-9)


def test_a_short_job_does_not_save():
    got = finite.plan_finite(200, finite.Conditions(write_s=37, mtbf_s=13_284, save_last=False))
    assert (got.segments, got.interval_s) == (1, 200)


def test_a_long_finite_job_meets_the_infinite_one():
    got = finite.plan_finite(1e7, finite.Conditions(write_s=37, mtbf_s=13_284, restart_s=300, downtime_s=120))
    assert got.interval_s == pytest.approx(interval.exact_s(37, 13_284), rel=1e-3)
    assert got.efficiency == pytest.approx(interval.best_efficiency(37, 13_284, 300, 120), rel=1e-6)


def test_warm_recoveries_space_the_saves_out():
    got = recovery_aware.plan_recovery_aware(37, 13_284, 300, recovery_aware.Warm(handled=0.75, restart_s=20))
    assert got.interval_s == pytest.approx(interval.exact_s(37, 4 * 13_284))
    assert got.waste < interval.waste(967, 37, 13_284, 300)
    with pytest.raises(PlanInputError, match="not been seen yet"):
        recovery_aware.plan_recovery_aware(37, 13_284, 300, recovery_aware.Warm(handled=1.0, restart_s=20))


def test_a_promise_tightens_the_interval_and_has_a_price():
    free = promises.plan_promise(37, 13_284, 300, rpo_s=7_200, rto_s=600)
    tight = promises.plan_promise(37, 13_284, 300, rpo_s=300, rto_s=600)
    assert (free.feasible, tight.feasible) == (True, True)
    assert free.extra_waste == pytest.approx(0, abs=1e-12)
    assert tight.interval_s == 263
    assert tight.extra_waste > 0.05
    impossible = promises.plan_promise(37, 13_284, 300, rpo_s=30, rto_s=600)
    assert not impossible.feasible
    assert "the write alone takes 37 s" in impossible.reasons[0]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_inputs_are_named(bad):
    with pytest.raises(PlanInputError, match=r"mtbf_s: expected a finite number > 0, got"):
        interval.young_s(37, bad)


def test_discrete_time_has_its_continuous_limit():
    fine = interval.units_expected(1_000_000, 100_000, 1e-6)
    assert fine == pytest.approx(interval.wall_time_s(1.0, 0.1, 0.0, 1.0) * 1e6, rel=1e-5)
    assert interval.units_expected(100, 10, 0.0) == 100
    with pytest.raises(PlanInputError, match="a multiple of interval_units"):
        interval.units_expected(100, 30, 0.03)


def test_first_order_answers_say_where_they_stop_to_hold():
    assert background.plan_async(2, 37, 13_284).holds
    assert not background.plan_async(2, 3_000, 13_284).holds
    assert levels.plan_levels((6e-5, 1.5e-5), (2, 37)).holds
    assert not levels.plan_levels((6e-3, 1.5e-3), (2, 37)).holds
    useless = levels.plan_levels((1e-6, 1e-3), (30, 37))
    assert not useless.holds
    assert "of no use" in useless.reason
    assert verified.plan_verified(37, 20, 1 / 13_284, 1 / 86_400).holds
    rough = verified.plan_verified(370, 200, 1 / 13_284, 1 / 8_640)
    assert not rough.holds
    assert "out of its regime" in rough.reason


def test_verified_saves_meet_daly_without_silent_errors():
    got = verified.plan_verified(37, 0, 1 / 13_284, 0)
    assert got.exact_interval_s == pytest.approx(interval.exact_s(37, 13_284), rel=1e-6)
    assert 1 / (1 + got.exact_overhead) == pytest.approx(interval.best_efficiency(37, 13_284), rel=1e-9)


def test_verified_saves_without_any_failure_cost_their_own_time():
    calm = verified.Rates(fail_stop_per_s=0, silent_per_s=0)
    assert verified.verified_time_s(1_000, 37, 20, calm, 300) == 1_057
