"""Numbers that no cluster can have are refused with where, expected, got and the way out; nothing is computed."""

import numpy as np
import pytest

from closeranks.plan import (
    ageing,
    availability,
    confidence,
    corruption,
    domains,
    ettr,
    finite,
    goodput,
    interval,
    levels,
    money,
    monte_carlo,
    promises,
    rates,
    read_csv,
    recovery,
    recovery_aware,
    scaling,
    spares,
    special,
    state_size,
    storage,
    straggler,
    varying,
    verified,
)
from closeranks.plan.checks import PlanInputError

DOMAIN = domains.Domain(name="rack", nodes_each=8, count=4, per_day=0.0)

REFUSED = {
    "interval_s": lambda: interval.efficiency(0, 1, 1),
    "write_s": lambda: interval.exact_s(-1, 1),
    "fault_chance": lambda: interval.units_expected(10, 1, 1.5),
    "confidence": lambda: confidence.estimate_mtbf(1, 1.0, 1.0),
    "failures": lambda: confidence.estimate_mtbf(-1, 1.0),
    "exposure_h": lambda: confidence.estimate_mtbf(1, 0.0),
    "domains": lambda: domains.job_rate((DOMAIN,)),
    "domain 'x': nodes_each": lambda: domains.Domain(name="x", nodes_each=0, count=1, per_day=1),
    "parts": lambda: rates.cascade(8, ()),
    "part 'x': needed": lambda: rates.Part(name="x", mtbf_h=1, needed=3, installed=2, repair_h=1),
    "fit": lambda: rates.rate_per_h_of_fit(-1),
    "needed": lambda: availability.machine_repair_law(units=2, needed=3, mtbf_h=1, repair_h=1, crews=1),
    "units": lambda: availability.k_of_n(1, -1, 0.5),
    "writes_s": lambda: levels.plan_levels((1.0,), ()),
    "rates and costs": lambda: verified.plan_verified(0, 0, 1, 1),
    "slowest_fold": lambda: varying.spread_samples(1, 0.5),
    "samples_s": lambda: varying.equivalent_s(np.array([-1.0]), 1.0),
    "mtbf_s": lambda: finite.Conditions(write_s=1, mtbf_s=0),
    "handled": lambda: recovery_aware.Warm(handled=2, restart_s=1),
    "rpo_s": lambda: promises.longest_interval_s(0, 1),
    "detect_s": lambda: recovery.Budget(detect_s=-1),
    "warm_share": lambda: recovery.cold_against_warm(1, 1, 2, 1, 1),
    "slow_speed": lambda: straggler.straggler_cost(8, 0, 1),
    "slow_speed ": lambda: straggler.break_even_s(2, 1),
    "together": lambda: storage.staggered(8, 1, 1, 9),
    "bytes_per_s": lambda: storage.write_s(1, 0),
    "sharded_over": lambda: state_size.training_state(1, state_size.StateRecipe(), ranks=4, sharded_over=3),
    "layers": lambda: state_size.kv_cache_bytes(layers=0, kv_heads=1, head_dim=1, tokens=1),
    "shortage_max": lambda: spares.spares_needed(1, 0),
    "shortage_max ": lambda: spares.spares_for_bursts(1, 1, 0.1, 8),
    "burst_share": lambda: spares.burst_loads(1, 2, 8),
    "promise": lambda: spares.spot_capacity(
        needed=1, reclaims_per_instance_h=0, refill_h=0, promise=1, spot_price_per_h=0, on_demand_price_per_h=0
    ),
    "step_s": lambda: corruption.exposure(1, 1, 0),
    "serial_share": lambda: scaling.amdahl(1, 2),
    "levels": lambda: money.prevention_margin((), (), ()),
    "durable_s": lambda: goodput.Timeline(kept_s=1, durable_s=2, discarded_s=0),
    "scheduled": lambda: goodput.fleet_goodput(2, 1, 1),
    "wear_shape and wear_scale_h": lambda: ageing.Bathtub(useful_per_h=1, wear_shape=1),
    "rate_per_s": lambda: ettr.ettr(1, 0, 1),
    "replicas": lambda: monte_carlo.simulate_wall_s(
        monte_carlo.BlockingRun(work_s=1, interval_s=1, write_s=0),
        monte_carlo.weibull_gaps(1, 1),
        np.random.default_rng(0),
        1,
    ),
    "file": lambda: read_csv.read_columns(""),
    "csv": lambda: read_csv.read_columns("time\nnever\n"),
}


@pytest.mark.parametrize("where", REFUSED)
def test_it_is_refused_by_name(where):
    with pytest.raises(PlanInputError) as refused:
        REFUSED[where]()
    assert refused.value.where == where.strip()
    for part in ("expected", refused.value.expected, f"got {refused.value.got}", refused.value.way_out):
        assert part in str(refused.value)


def test_ends_of_special_functions():
    assert special.gamma_p(3.0, 0.0) == 0
    assert special.gamma_q(3.0, 0.0) == 1
    assert special.chi2_quantile(np.array([0.0, 1.0]), 4) == pytest.approx([0, np.inf])
    assert special.log_binomial_pmf(np.array([-1, 0, 3, 5]), 3, np.array([0.5, 0.0, 1.0, 0.5])) == pytest.approx(
        [-np.inf, 0, 0, -np.inf]
    )


def test_survival_and_whole_fleets():
    assert rates.survival(50_000, 50_000) == pytest.approx(np.exp(-1))
    assert rates.failures_per_day(3.6923) == pytest.approx(6.5, abs=1e-3)
    assert confidence.estimate_mtbf(24, 24.0).failures_per_day == 24
    assert confidence.estimate_mtbf(0, 24.0).failures_per_day == 0
    assert goodput.fleet_goodput(0.9, 0.95, 0.5) == pytest.approx(0.4275)
    assert recovery.load_s(2.1e12, 100e9) == 21
    assert levels.plan_levels((1e-5,), (37,)).intervals_s[0] == pytest.approx(interval.young_s(37, 1e5))
