"""Systems of parts: limits, monotonicity, and formulas checked against each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.plan import (
    ageing,
    availability,
    confidence,
    corruption,
    domains,
    money,
    protections,
    rates,
    recovery,
    scaling,
    spares,
    state_size,
    storage,
    straggler,
)
from closeranks.plan.checks import PlanInputError

shares = st.floats(0, 1)


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(0, 30), shares)
def test_k_of_n_lies_between_series_and_parallel(needed, more, each):
    units = needed + more
    got = availability.k_of_n(needed, units, each)
    assert rates.series_reliability(each, units) - 1e-9 <= got <= rates.parallel_reliability(each, units) + 1e-9


def test_k_of_n_at_its_ends():
    each = np.array([0.0, 0.3, 1.0])
    assert availability.k_of_n(4, 4, each) == pytest.approx(rates.series_reliability(each, 4))
    assert availability.k_of_n(1, 4, each) == pytest.approx(rates.parallel_reliability(each, 4))
    assert availability.k_of_n(0, 4, 0.2) == 1
    assert availability.k_of_n(5, 4, 0.2) == 0


def test_unlimited_crews_make_units_independent():
    given_ = {"units": 12, "needed": 10, "mtbf_h": 1_000, "repair_h": 10}
    free = availability.k_of_n_with_crews(**given_, crews=12)
    assert free == pytest.approx(availability.k_of_n(10, 12, 1_000 / 1_010), rel=1e-12)
    one, two = (availability.k_of_n_with_crews(**given_, crews=crews) for crews in (1, 2))
    assert one < two < free


def test_large_systems_do_not_underflow():
    law = availability.machine_repair_law(units=20_000, needed=19_000, mtbf_h=1_000, repair_h=24, crews=20_000)
    assert law.sum() == pytest.approx(1)
    assert (law * np.arange(law.size)).sum() == pytest.approx(20_000 * 24 / 1_024, rel=1e-9)


def test_shared_causes_are_a_floor_that_replicas_cannot_lower():
    alone = availability.replicas(0.99, 3)
    assert alone == pytest.approx(1 - 1e-6)
    assert availability.replicas(0.99, 1, 0.1) == pytest.approx(0.99)
    assert availability.replicas(0.99, 50, 0.1) == pytest.approx(0.999)
    assert availability.replicas_needed(0.99, 0.9999) == 2
    with pytest.raises(PlanInputError, match="causes shared by all replicas"):
        availability.replicas_needed(0.99, 0.9999, shared=0.1)


def test_redundancy_takes_a_part_out_of_the_cascade():
    single = rates.Part(name="power", mtbf_h=100_000, serves=8)
    pair = rates.Part(name="power", mtbf_h=100_000, serves=8, needed=1, installed=2, repair_h=24)
    lone, both = (rates.cascade(10_000, (part,)).failures_per_h for part in (single, pair))
    mean_pair_mtbf_h = 100_000**2 / (2 * 24)  # two must be out at once
    assert both == pytest.approx(1_250 / mean_pair_mtbf_h, rel=1e-3)
    assert both < lone / 1_000


def test_impossible_parts_are_named():
    with pytest.raises(PlanInputError, match="part 'GPU': mtbf_h"):
        rates.Part(name="GPU", mtbf_h=0)
    with pytest.raises(PlanInputError, match="redundancy without a repair time"):
        rates.Part(name="power", mtbf_h=1e5, installed=2)
    with pytest.raises(PlanInputError, match="'GPU' twice"):
        rates.cascade(8, (rates.Part(name="GPU", mtbf_h=1), rates.Part(name="GPU", mtbf_h=2)))


def test_counting_lost_nodes_instead_of_events_is_eight_times_wrong():
    got = domains.job_rate(
        (
            domains.Domain(name="node", nodes_each=1, count=2_048, per_day=6.5e-3),
            domains.Domain(name="rack", nodes_each=8, count=256, per_day=2e-3),
            domains.Domain(name="fabric", nodes_each=2_048, count=1, per_day=0.05),
        )
    )
    assert got.naive_error == pytest.approx(8.6, abs=0.05)


def test_independence_hides_that_neighbours_die_together():
    chain = (
        domains.Domain(name="node", nodes_each=1, count=2, per_day=0.01),
        domains.Domain(name="rack", nodes_each=2, count=1, per_day=0.1),
    )
    true, independent = domains.joint_survival(chain, 24)
    assert true > independent
    assert domains.node_survival(chain, 24) ** 2 == pytest.approx(independent)


def test_fit_and_mtbf_are_inverse():
    assert rates.mtbf_h_of_fit(rates.fit_of_mtbf(50_000)) == pytest.approx(50_000)
    assert rates.rate_per_h_of_fit(20_000) == pytest.approx(1 / 50_000)


@settings(deadline=None)
@given(st.integers(0, 2_000), st.floats(1, 1e6))
def test_the_interval_of_an_mtbf_holds_its_estimate(failures, exposure_h):
    got = confidence.estimate_mtbf(failures, exposure_h)
    assert got.low_h < got.mtbf_h
    assert got.mtbf_h <= got.high_h


def test_the_chi_square_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(7)
    counts = rng.poisson(6.0, 4_000)
    by_count = {int(n): confidence.estimate_mtbf(int(n), 600.0, 0.9) for n in np.unique(counts)}
    held = np.mean([by_count[int(n)].low_h <= 100 <= by_count[int(n)].high_h for n in counts])
    assert held >= 0.89  # exact intervals of a discrete count are conservative


def test_no_burst_is_palm():
    for count in (5, 13, 22, 40):
        assert spares.burst_shortage(count, 13.312, 0, 8) == pytest.approx(spares.shortage(count, 13.312), abs=1e-12)
    assert spares.normal_shortage(22, 13.312) < spares.shortage(22, 13.312)


def test_bursts_need_more_spares():
    plain = spares.spares_needed(13.312, 0.01)
    bursty = spares.spares_for_bursts(13.312, 0.01, 0.05, 8)
    assert (plain.spares, bursty.spares) == (22, 33)
    assert bursty.shortage <= 0.01


def test_spot_capacity_keeps_its_promise_at_less_money():
    got = spares.spot_capacity(
        needed=100,
        reclaims_per_instance_h=0.05,
        refill_h=1.0,
        promise=0.99,
        spot_price_per_h=1.0,
        on_demand_price_per_h=3.0,
    )
    assert got.promise >= 0.99
    assert availability.k_of_n(100, got.request - 1, got.availability) < 0.99
    assert got.price_per_h < got.on_demand_price_per_h


LIFE = ageing.Bathtub(useful_per_h=2e-5, early_per_h=2e-4, early_h=500, wear_shape=6, wear_scale_h=60_000)


def test_the_bathtub_has_three_phases():
    assert [ageing.phase_at(LIFE, age_h) for age_h in (0, 20_000, 60_000)] == ["burn-in", "useful life", "wear-out"]


def test_cumulative_hazard_integrates_the_hazard():
    ages_h = np.linspace(0, 50_000, 200_001)
    hazard = ageing.hazard_per_h(LIFE, ages_h)
    integral = np.sum((hazard[1:] + hazard[:-1]) / 2 * np.diff(ages_h))
    assert ageing.cumulative_hazard(LIFE, 50_000) == pytest.approx(integral, rel=1e-6)


def test_burn_in_and_mixed_age():
    assert ageing.burn_in_gain(LIFE, 1e9) == pytest.approx(0.1)
    young = ageing.fleet_rate_per_h(LIFE, np.array([0.0, 20_000.0]), np.array([900.0, 100.0]))
    old = ageing.fleet_rate_per_h(LIFE, np.array([0.0, 20_000.0]), np.array([100.0, 900.0]))
    assert young > 3 * old
    ages_h = np.array([0.0, 20_000.0])
    assert young == pytest.approx((np.array([900, 100]) * ageing.hazard_per_h(LIFE, ages_h)).sum())


def test_few_lemons_make_many_failures():
    got = ageing.with_lemons(1_000, 1e-4, 0.012, 12.3)
    assert got.lemon_failures == pytest.approx(0.13, abs=5e-3)
    assert got.rate_without_per_h < got.rate_per_h
    assert ageing.lemon_count(1_000, 1_000) > ageing.lemon_count(10, 10) > 1


def test_keep_enough_checkpoints_for_a_late_detection():
    assert corruption.checkpoints_to_keep(0, 967) == 1
    assert corruption.checkpoints_to_keep(967, 967) == 2
    assert corruption.checkpoints_to_keep(86_400, 967) == 91
    got = corruption.daily_cost(16_384, 1e-6, 86_400, 967, 0.01)
    assert got.rework_accelerator_h_per_day == pytest.approx(0.393216 * (86_400 + 483.5) / 3_600 * 16_384)
    assert got.check_accelerator_h_per_day == pytest.approx(24 * 163.84)


def test_waves_end_no_earlier_but_writers_wait_less():
    storm = storage.storm(1_000, 10e9, 100e9)
    waves = storage.staggered(1_000, 10e9, 100e9, 100)
    assert waves.seconds == pytest.approx(storm.seconds)
    assert waves.mean_end_s == pytest.approx(0.55 * storm.seconds)
    assert storage.storm(10, 10e9, 100e9, 1e9).limited_by == "writer"
    assert storage.staged(10e9, 2e9, 1_000, 100e9, 967).pause_s == 5
    assert not storage.staged(10e9, 2e9, 1_000, 100e9, 60).holds


def test_a_state_is_written_once_however_it_is_replicated():
    recipe = state_size.preset("bf16 weights + fp32 master + fp32 moments")
    sharded = state_size.training_state(70e9, recipe, ranks=64, sharded_over=64)
    replicated = state_size.training_state(70e9, recipe, ranks=64)
    assert sharded.total_bytes == replicated.total_bytes == 70e9 * 14
    assert replicated.held_bytes_each == 64 * sharded.held_bytes_each
    assert sharded.written_bytes_each == replicated.written_bytes_each


def test_a_slow_rank_is_replaced_only_if_it_stays_slow():
    assert straggler.break_even_s(0.5, 120) == 240
    assert straggler.break_even_s(1.0, 120) == float("inf")
    assert straggler.exclusion_break_even_speed(1_024) == pytest.approx(1_023 / 1_024)


def test_warm_recoveries_save_accelerator_hours():
    got = recovery.cold_against_warm(397 + 480, 20, 0.8, 4.8, 10_000)
    assert got.warm.accelerator_h < got.mixed.accelerator_h < got.cold.accelerator_h
    assert got.saved_accelerator_h == pytest.approx(0.8 * (got.cold.accelerator_h - got.warm.accelerator_h))
    with pytest.raises(PlanInputError, match="faster than recovery ends"):
        recovery.daily_cost(20_000, 5, 8)


@settings(deadline=None)
@given(st.integers(1, 100_000), shares)
def test_scaling_curves_fall_and_begin_at_one(count, serial):
    assert scaling.amdahl(1, serial) == 1
    assert 0 <= scaling.amdahl(count + 1, serial) <= scaling.amdahl(count, serial) <= 1


def test_ring_all_reduce_nears_twice_the_payload():
    assert scaling.ring_all_reduce_s(2, 1e9, 1e9) == pytest.approx(1.0)
    assert scaling.ring_all_reduce_s(1e9, 1e9, 1e9) == pytest.approx(2.0)
    assert scaling.ring_efficiency(8, 1.0, 1e9, 1e9, overlap=1.0) == 1
    assert scaling.ring_efficiency(8, 1.0, 1e9, 1e9) == pytest.approx(1 / 2.75)


def test_measured_points_are_interpolated_not_extrapolated():
    got = scaling.measured(np.array([4, 8, 16, 4_096]), np.array([8, 1_024]), np.array([1.0, 0.9]))
    assert got == pytest.approx([1.0, 1.0, 1 - 0.1 / 7, 0.9])
    with pytest.raises(PlanInputError, match="rising counts"):
        scaling.measured(8, np.array([8, 4]), np.array([1.0, 0.9]))


def test_a_scaling_curve_brings_the_peak_nearer():
    job = scaling.Reliability(accelerator_mtbf_h=50_000, write_s=37, restart_s=300)
    ideal = scaling.peak(job)
    real = scaling.peak(job, utilisation=0.4, scaling=lambda n: scaling.amdahl(n, 1e-5))
    assert real.count < ideal.count
    assert real.throughput < 0.4 * ideal.throughput
    around = scaling.useful_throughput(ideal.count * np.array([0.9, 1.0, 1.1]), job)
    assert np.argmax(around) == 1


JOB = protections.Situation(
    accelerators=10_000, mtbf_s=13_284, write_s=37, restart_s=397, price_per_accelerator_h=2.0, interval_s=3_600
)


def test_protections_are_ranked_by_net_benefit():
    ranked = protections.rank(
        JOB,
        (
            protections.Protection(name="save at the optimum", best_interval=True),
            protections.Protection(name="burn-in", rate_times=0.9, cost_per_day=1_000),
            protections.Protection(name="warm recovery", handled=0.8, handled_restart_s=20),
            protections.Protection(name="gold plating", rate_times=0.999, cost_per_day=50_000),
        ),
    )
    assert [row.name for row in ranked] == ["warm recovery", "save at the optimum", "burn-in", "gold plating"]
    assert ranked[-1].net_per_day < 0 < ranked[0].net_per_day
    assert ranked[0].return_on_cost == float("inf")


def test_as_it_is_equals_the_formula():
    from closeranks.plan import interval

    bare = protections.efficiency_with(JOB, protections.Protection(name="as it is"))
    assert bare == pytest.approx(interval.efficiency(3_600, 37, 13_284, 397))


def test_prevention_stops_paying_at_its_margin():
    got = money.prevention_margin((0, 1, 2, 3), (0, 100, 300, 900), (1_000, 500, 250, 200))
    assert (got.level, got.total_per_day) == (2, 550)
    assert money.failure_cost(10_000, 360, 3.0) == pytest.approx(3_000)


def test_alternatives_to_a_full_restart_and_to_hardware_share_one_model():
    life = ageing.Bathtub(useful_per_h=2e-5, early_per_h=2e-4, early_h=200)
    choices = (
        protections.warm_restart(0.8, 20),
        protections.hot_spares(JOB, 13, 8, 0.8, 20),
        protections.shrink(JOB, 8, 0.8, 20, 24),
        protections.error_correction(0.17, 0.01, 0.02),
        protections.burn_in(JOB, life, 200, 26_280),
    )
    by_name = {row.name: row for row in protections.rank(JOB, choices)}
    assert by_name["warm recovery of 80%"].net_per_day > by_name["13 hot spare nodes"].net_per_day
    assert by_name["13 hot spare nodes"].cost_per_day == 13 * 8 * 24 * 2.0
    assert by_name["13 hot spare nodes"].efficiency > by_name["shrink until repaired"].efficiency
    assert by_name["ECC"].net_per_day != 0
    burned = next(one for one in choices if one.name == "burn-in of 200 h")
    assert burned.rate_times == pytest.approx(1 - 0.04 * (1 - 2.718281828**-1) / (2e-5 * 26_280 + 0.04), rel=1e-6)
    assert burned.cost_per_day == pytest.approx(10_000 * 200 * 2 * 24 / 26_280)


def test_batches_of_several_sizes_have_their_mean_and_spread():
    loads = {1: 13.0, 8: 0.5, 64: 0.05}
    law = spares.batch_law(loads, 1_000)
    out = np.arange(law.size)
    mean = (law * out).sum()
    assert law.sum() == pytest.approx(1, rel=1e-12)
    assert mean == pytest.approx(13 + 4 + 3.2, rel=1e-9)
    assert (law * (out - mean) ** 2).sum() == pytest.approx(13 + 64 * 0.5 + 4_096 * 0.05, rel=1e-6)


def test_large_loads_do_not_underflow():
    law = spares.batch_law({1: 2_000.0}, 3_000)
    assert (law * np.arange(law.size)).sum() == pytest.approx(2_000, rel=1e-9)
    big = spares.spares_for_batches({1: 2_000.0}, 0.01)
    assert big.spares == spares.spares_needed(2_000.0, 0.01).spares
    with pytest.raises(PlanInputError, match="at least one node"):
        spares.batch_law({0: 1.0}, 5)


def test_any_throughput_has_its_peak_found():
    job = scaling.Reliability(accelerator_mtbf_h=50_000, write_s=37, restart_s=300)
    found = scaling.peak_of(lambda count: float(scaling.useful_throughput(count, job)))
    assert found.count == pytest.approx(scaling.peak(job).count, rel=2e-3)
    assert found.limited
    assert not scaling.peak_of(lambda count: count).limited
