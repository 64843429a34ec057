"""Exact answers against simulated ones: every claim within three standard errors, seeds fixed."""

import numpy as np
import pytest

from closeranks.plan import (
    background,
    interval,
    levels,
    monte_carlo,
    spares,
    varying,
    verified,
)
from closeranks.plan.checks import NotSolvableError

SIGMAS = 3.0


@pytest.mark.parametrize("mtbf_s", [3_600.0, 13_284.0, 100_000.0])
@pytest.mark.parametrize("interval_s", [300.0, 1_000.0, 3_600.0])
@pytest.mark.parametrize(("restart_s", "downtime_s"), [(0.0, 0.0), (300.0, 120.0)])
def test_wall_time_over_a_grid(mtbf_s, interval_s, restart_s, downtime_s):
    run = monte_carlo.BlockingRun(
        work_s=36_000, interval_s=interval_s, write_s=37, restart_s=restart_s, downtime_s=downtime_s
    )
    rng = np.random.default_rng([int(mtbf_s), int(interval_s), int(restart_s)])
    got = monte_carlo.simulate_wall_s(run, monte_carlo.weibull_gaps(mtbf_s, 1.0), rng, 4_000)
    claimed = interval.wall_time_s(36_000, interval_s, 37, mtbf_s, restart_s, downtime_s)
    assert abs(got.z_of(claimed)) < SIGMAS


def test_the_published_wall_time():
    run = monte_carlo.BlockingRun(work_s=1e5, interval_s=1_000, write_s=37, restart_s=300, downtime_s=120)
    got = monte_carlo.simulate_wall_s(run, monte_carlo.weibull_gaps(13_284, 1.0), np.random.default_rng(1), 20_000)
    assert abs(got.z_of(111_315.037956579)) < SIGMAS


def test_bursty_failures_waste_less_at_the_same_mtbf():
    run = monte_carlo.BlockingRun(work_s=1e6, interval_s=967, write_s=37, restart_s=300)
    got = monte_carlo.simulate_wall_s(run, monte_carlo.weibull_gaps(13_284, 0.65), np.random.default_rng(2), 2_000)
    assert 1 - 1e6 / got.mean == pytest.approx(0.0888, abs=1e-3)


@pytest.mark.parametrize(("pause_s", "interval_s"), [(2.0, 230.5), (0.05, 37.0)])
def test_asynchronous_waste(pause_s, interval_s):
    got = monte_carlo.simulate_async_waste(
        interval_s=interval_s,
        pause_s=pause_s,
        write_s=37.0,
        mtbf_s=13_284.0,
        restart_s=0.0,
        rng=np.random.default_rng(3),
        failures=400_000,
    )
    claimed = background.async_waste(interval_s, pause_s, 37.0, 13_284.0)
    second_order = (interval_s + 37) / 13_284  # the formula is first order: allow its next term
    assert abs(got.mean - claimed) < SIGMAS * got.standard_error + second_order * claimed


def test_a_varying_write_equals_its_fixed_equivalent():
    rng = np.random.default_rng(4)
    samples_s = varying.spread_samples(100, 3)
    fixed_s = varying.equivalent_s(samples_s, 1_800.0)
    times_s = []
    for _ in range(20_000):
        spent = 0.0
        while True:
            need, life = 500 + rng.choice(samples_s), rng.exponential(1_800)
            if life >= need:
                times_s.append(spent + need)
                break
            spent += life
    mean, error = np.mean(times_s), np.std(times_s) / np.sqrt(len(times_s))
    assert abs(mean - interval.wall_time_s(500, 500, fixed_s, 1_800)) < SIGMAS * error


@pytest.mark.parametrize("count", [16, 22, 33])
def test_shortage_under_bursts(count):
    got = monte_carlo.simulate_shortage(
        load=13.312, spares=count, burst_share=0.05, burst_nodes=8, rng=np.random.default_rng(5), samples=200_000
    )
    assert abs(got.z_of(spares.burst_shortage(count, 13.312, 0.05, 8))) < SIGMAS


def test_the_first_of_all_domains():
    per_day = np.concatenate((np.full(64, 6.5e-3), np.full(8, 2e-3), [0.05]))
    got = monte_carlo.simulate_domains(per_day, np.random.default_rng(6), 50_000)
    assert abs(got.z_of(24 / per_day.sum())) < SIGMAS


def test_two_levels_cost_what_first_order_says_and_a_little_more():
    rates, writes = (0.8 / 13_284, 0.2 / 13_284), (2.0, 37.0)
    plan = levels.plan_levels(rates, writes)
    got = monte_carlo.simulate_levels(plan.intervals_s, writes, rates, np.random.default_rng(8), 6_000)
    assert abs(got.z_of(0.0511)) < SIGMAS
    assert plan.overhead < got.mean < 1.1 * plan.overhead


@pytest.mark.parametrize("restart_s", [0.0, 300.0])
@pytest.mark.parametrize("interval_s", [300.0, 1_076.0, 4_000.0])
@pytest.mark.parametrize(("stop_per_s", "silent_per_s"), [(1 / 13_284, 1 / 86_400), (0.0, 1e-4), (1e-3, 0.0)])
def test_verified_time_is_exact(interval_s, restart_s, stop_per_s, silent_per_s):
    rates = verified.Rates(fail_stop_per_s=stop_per_s, silent_per_s=silent_per_s)
    got = monte_carlo.simulate_verified(
        interval_s=interval_s,
        write_s=37.0,
        verify_s=20.0,
        rates=rates,
        restart_s=restart_s,
        rng=np.random.default_rng([9, int(interval_s), int(restart_s)]),
        samples=40_000,
    )
    assert abs(got.z_of(verified.verified_time_s(interval_s, 37.0, 20.0, rates, restart_s))) < SIGMAS


def test_the_published_overhead_of_verified_saves():
    exact = verified.plan_verified(37, 20, 1 / 13_284, 1 / 86_400)
    assert exact.exact_overhead == pytest.approx(0.114, abs=2e-3)


def test_a_job_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(monte_carlo, "_ROUNDS_MOST", 1_000)
    run = monte_carlo.BlockingRun(work_s=1e6, interval_s=1e5, write_s=37)
    with pytest.raises(NotSolvableError, match="save more often"):
        monte_carlo.simulate_wall_s(run, monte_carlo.weibull_gaps(100, 1.0), np.random.default_rng(1), 10)
