"""The 42 vectors and the table from the literature: each one line of numbers that the planner must reproduce."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from closeranks.plan import (
    availability,
    background,
    confidence,
    corruption,
    domains,
    ettr,
    goodput,
    interval,
    levels,
    promises,
    rates,
    recovery,
    scaling,
    spares,
    state_size,
    storage,
    straggler,
    verified,
)

VECTORS = json.loads((Path(__file__).parent / "data" / "planning_vectors.json").read_text())


def young(i):
    return {"tau": interval.young_s(i["delta"], i["M"])}


def daly_first_order(i):
    return {"tau": interval.daly_first_order_s(i["delta"], i["M"], i["R"])}


def daly_higher_order(i):
    return {"tau": interval.daly_higher_order_s(i["delta"], i["M"])}


def exact_interval(i):
    return {
        "tau": interval.exact_s(i["delta"], i["M"]),
        "efficiency": interval.best_efficiency(i["delta"], i["M"]),
        "daly": interval.daly_higher_order_s(i["delta"], i["M"]),
        "young": interval.young_s(i["delta"], i["M"]),
    }


def waste(i):
    given = (i["tau"], i["delta"], i["M"], i["R"])
    return {
        "exact": interval.waste(*given),
        "first_order": interval.waste_first_order(*given),
        "product": interval.waste_product(*given),
    }


def wall_time(i):
    return {"wall": interval.wall_time_s(i["Ts"], i["tau"], i["delta"], i["M"], i["R"], i["D"])}


def ettr_kokolis(i):
    rate = ettr.rate_per_s(i["N_nodes"], i["rf_per_node_day"])
    return {"ettr": ettr.ettr(i["dt"], rate, i["u0"], i["w"])}


def ettr_optimal_dt(i):
    rate = ettr.rate_per_s(i["N_nodes"], i["rf_per_node_day"])
    best = ettr.best_interval_s(rate, i["u0"], i["w"])
    return {
        "dt": best,
        "ettr": ettr.ettr(best, rate, i["u0"], i["w"]),
        "young_dt": interval.young_s(i["w"], 1 / rate),
    }


def ettr_queue(i):
    rate = ettr.rate_per_s(i["N_nodes"], i["rf_per_node_day"])
    return {
        "ettr": ettr.ettr_of_run(i["R"], i["dt"], rate, i["u0"], i["w"], i["q"]),
        "limit": ettr.ettr(i["dt"], rate, i["u0"], i["w"], i["q"]),
    }


def two_level(i):
    got = levels.plan_levels((i["lam1"], i["lam2"]), (i["C1"], i["C2"]))
    return {"W1": got.intervals_s[0], "W2": got.intervals_s[1], "overhead": got.overhead}


def silent_failstop(i):
    got = verified.plan_verified(i["C"], i["V"], i["lam_f"], i["lam_s"])
    return {"W": got.interval_s, "overhead": got.overhead}


def async_(i):
    got = background.plan_async(i["pause"], i["write"], i["M"])
    return {"tau": got.interval_s, "unbounded": got.unbounded_s, "waste": got.waste}


def k_of_n(i):
    return {"A": availability.k_of_n(i["k"], i["n"], i["a"])}


def k_of_n_repair(i):
    given = {"units": i["n"], "needed": i["k"], "mtbf_h": i["mtbf"], "repair_h": i["mttr"], "crews": i["crews"]}
    return {
        "hot": availability.k_of_n_with_crews(**given),
        "cold": availability.k_of_n_with_crews(**given, cold=True),
    }


def spare_nodes(i):
    load = spares.load_of(i["nodes"], i["rf_per_node_day"], i["repair_days"])
    got = spares.spares_needed(load, 1 - i["p"])
    return {"spares": got.spares, "load": load, "p_short": got.shortage}


def mtbf_ci(i):
    got = confidence.estimate_mtbf(i["failures"], i["hours"])
    return {"mtbf": got.mtbf_h, "lo": got.low_h, "hi": got.high_h}


def mtbf_zero(i):
    return {"lo95": confidence.estimate_mtbf(i["failures"], i["hours"]).low_h}


def sdc(i):
    given = (i["gpus"], i["rate_per_gpu_hour"], i["hours"])
    return {"expected": corruption.corruptions_expected(*given), "p_any": corruption.chance_of_any(*given)}


def fit_cascade(i):
    parts = (
        rates.Part(name="GPU", mtbf_h=i["gpu_h"]),
        rates.Part(name="PCIe", mtbf_h=i["pcie_h"]),
        rates.Part(name="NIC", mtbf_h=i["nic_h"], serves=8 / i["nic_per_8"]),
    )
    return {"mtbf_h": rates.cascade(i["gpus"], parts).mtbf_h}


def shock_domains(i):
    got = domains.job_rate(
        (
            domains.Domain(name="node", nodes_each=1, count=i["nodes"], per_day=i["node_day"]),
            domains.Domain(name="rack", nodes_each=i["rack"], count=i["nodes"] / i["rack"], per_day=i["rack_day"]),
            domains.Domain(name="fabric", nodes_each=i["nodes"], count=1, per_day=i["fabric_day"]),
        )
    )
    return {
        "job_mtbf_h": got.mtbf_h,
        "node_down_per_day": got.node_losses_per_day,
        "naive_mtbf_h": got.naive_mtbf_h,
    }


def peak_gpus(i):
    got = scaling.peak(scaling.Reliability(accelerator_mtbf_h=i["gpu_mtbf_h"], write_s=i["delta"], restart_s=i["R"]))
    return {"N": got.count, "efficiency": got.efficiency, "throughput": got.throughput}


def peak_gpus_fixed(i):
    accelerator_mtbf_h = 24 / i["node_rate_day"] * i["gpus_per_node"]
    got = scaling.peak(
        scaling.Reliability(
            accelerator_mtbf_h=accelerator_mtbf_h, write_s=i["delta"], restart_s=i["R"], interval_s=i["tau"]
        )
    )
    return {"N": got.count}


def goodput_timeline(i):
    got = goodput.Timeline(
        kept_s=i["steps1"] + i["steps2"],
        durable_s=i["steps1"],
        discarded_s=i["lost"],
        start_s=i["init"],
        save_s=i["ckpt1"] + i["ckpt_partial"],
        detect_s=i["detect"],
        restart_s=i["restart"],
    )
    return {
        "wall": got.wall_s,
        "goodput": got.goodput,
        "durable_goodput": got.durable_goodput,
        "double_charge_error": got.double_charged,
    }


ANSWER = {
    "young": young,
    "daly_first_order": daly_first_order,
    "daly_higher_order": daly_higher_order,
    "exact_interval": exact_interval,
    "waste": waste,
    "wall_time": wall_time,
    "ettr_kokolis": ettr_kokolis,
    "ettr_optimal_dt": ettr_optimal_dt,
    "ettr_queue": ettr_queue,
    "two_level": two_level,
    "silent_failstop": silent_failstop,
    "async": async_,
    "async_bound": async_,
    "k_of_n": k_of_n,
    "k_of_n_repair": k_of_n_repair,
    "spares": spare_nodes,
    "mtbf_ci": mtbf_ci,
    "mtbf_zero": mtbf_zero,
    "sdc": sdc,
    "fit_cascade": fit_cascade,
    "shock_domains": shock_domains,
    "peak_gpus": peak_gpus,
    "peak_gpus_fixed": peak_gpus_fixed,
    "goodput_timeline": goodput_timeline,
}
TIGHT = 1e-9
LOOSE = {"peak_gpus": 5e-3, "peak_gpus_fixed": 5e-3, "waste": 1e-7}
"""Most vectors are closed forms and hold to 1e-9; these were published with few digits or as a rounded maximum."""


def test_there_are_42_vectors():
    assert len(VECTORS) == 42


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['name']} {v['inputs']}")
def test_vector(vector):
    got = ANSWER[vector["name"]](vector["inputs"])
    tolerance = min(LOOSE.get(vector["name"], TIGHT), vector["rel_tol"])
    for name, expected in vector["expected"].items():
        assert float(got[name]) == pytest.approx(expected, rel=tolerance), name


# --- the table from the literature: (what we say, what was published, relative tolerance = its printed digits) ---


def cascade_10k():
    return rates.cascade(
        10_000,
        (
            rates.Part(name="GPU", mtbf_h=50_000),
            rates.Part(name="PCIe", mtbf_h=200_000),
            rates.Part(name="power", mtbf_h=100_000, serves=8),
            rates.Part(name="network", mtbf_h=150_000, serves=8),
        ),
    )


def test_cascade_of_a_10k_cluster():
    got = cascade_10k()
    assert got.mtbf_h == pytest.approx(3.6923, abs=5e-5)
    assert got.failures_per_day == pytest.approx(6.5, abs=5e-3)
    assert 7 * got.failures_per_day == pytest.approx(45.5, abs=5e-2)
    assert [part.name for part in got.parts] == ["GPU", "PCIe", "power", "network"]
    assert sum(part.share for part in got.parts) == pytest.approx(1)


def test_mtbf_falls_with_the_count():
    counts = np.array([8, 64, 512, 1_000, 4_000, 10_000, 25_000])
    expected = [6_250, 781.25, 97.66, 50, 12.5, 5, 2]
    assert rates.system_mtbf_h(50_000, counts) == pytest.approx(expected, rel=5e-5)


def test_ten_thousand_four_nines():
    got = rates.series_reliability(0.9999, 10_000)
    assert got == pytest.approx(0.36786, abs=5e-6)
    assert 1 - got == pytest.approx(0.63214, abs=5e-6)


def test_availability_with_slow_and_fast_repair():
    got = availability.steady_state(5, np.array([0.5, 5 / 60]))
    assert got == pytest.approx([0.9091, 0.9836], abs=5e-5)


def test_memory_upsets_without_ecc():
    upsets_h = rates.memory_upsets_per_h(1_024 * 80e9, 250)
    assert 3600 / upsets_h == pytest.approx(21.97, abs=5e-3)
    assert rates.memory_upsets_per_h(1_024 * 80e9, 250, escape=1e-3) == pytest.approx(upsets_h / 1000)


def test_young_in_any_unit():
    writes, mtbfs = np.array([0.25, 2.5, 5, 15]), np.array([5, 120, 3_000, 3_000])
    assert interval.young_s(writes, mtbfs) == pytest.approx([1.581, 24.49, 173.2, 300], rel=3e-4)


def test_intervals_of_published_state_sizes():
    writes_s = storage.write_s(np.array([2.1e12, 240e9, 1.4e9, 4e12, 1.2e9]), 100e9)
    got = interval.young_s(writes_s, 5 * 3600)
    assert got == pytest.approx([869.5, 293.9, 22.4, 1_200, 20.8], abs=0.06)


def test_recovery_budget_and_its_day():
    budget = recovery.Budget(detect_s=60, restart_s=180, load_s=37, warm_up_s=120)
    day = recovery.daily_cost(budget.total_s, 4.8, 10_000)
    assert budget.total_s == 397
    assert budget.longest == ("restart_s", 180)
    assert day.recovery_s / 60 == pytest.approx(31.76, abs=5e-3)
    assert day.share == pytest.approx(0.02206, abs=5e-6)
    assert day.accelerator_h == pytest.approx(5_293.3, abs=0.05)


def test_stopping_the_world():
    got = recovery.stop_the_world(10_000, 120, 3_600, 3.0)
    assert got.accelerator_h_each == pytest.approx(333.3, abs=0.05)
    assert got.money_each == pytest.approx(1_000)
    assert got.money_per_day == pytest.approx(24_000)


def test_checkpoint_storm():
    got = storage.storm(10_000, 10e9, 100e9)
    assert (got.total_bytes, got.seconds) == (100e12, 1_000)


def test_a_share_of_64_nodes():
    share_bytes_per_s = 10e9 / 8
    got = storage.storm(64, 750e9 / 64, share_bytes_per_s)
    assert got.bytes_per_s_each == pytest.approx(19.5e6, rel=2e-3)
    assert got.seconds == pytest.approx(600)
    assert got.total_bytes == pytest.approx(750e9)
    assert storage.store_needed_bytes_per_s(750e9, 120) == pytest.approx(6.25e9)


def test_one_straggler_of_1024():
    got = straggler.straggler_cost(1_024, 0.5, 3.0)
    assert got.relative_speed == 0.5
    assert got.idle_money_per_h == pytest.approx(1_534.5)


def test_silent_corruption_of_100k():
    got = corruption.exposure(100_000, 1e-6, 2)
    assert got.chance_per_step == pytest.approx(5.5554e-5, abs=5e-10)
    assert got.interval_steps == pytest.approx(18_000)
    assert got.interval_h == pytest.approx(10)


def test_replicas_of_two_nines():
    out_h = np.array([availability.downtime_h_per_year(availability.replicas(0.99, n)) for n in (1, 2, 3)])
    assert out_h[0] / 24 == pytest.approx(3.65)
    assert out_h[1] * 60 == pytest.approx(52.6, abs=0.05)
    assert out_h[2] * 3600 == pytest.approx(31.5, abs=0.05)


def test_four_plus_two_shards():
    assert availability.shards(4, 2, 0.99) == pytest.approx(0.99998045, abs=5e-9)


def test_a_shared_shock_alone_and_with_the_gpus():
    shock = domains.Domain(name="fabric", nodes_each=10, count=1, per_day=24 * 10 / 50)
    gpus = domains.Domain(name="GPU", nodes_each=1, count=1, per_day=24 / 50)
    assert domains.job_rate((shock,)).mtbf_h == pytest.approx(5)
    assert domains.job_rate((shock, gpus)).mtbf_h == pytest.approx(4.545, abs=5e-4)


def test_419_failures_in_54_days():
    assert confidence.estimate_mtbf(419, 54 * 24).mtbf_h == pytest.approx(3.093, abs=5e-4)


def test_attention_cache_of_80_layers():
    sizes = {"layers": 80, "head_dim": 128, "tokens": 131_072}
    assert state_size.kv_cache_bytes(**sizes, kv_heads=8) == pytest.approx(42.95e9, rel=1e-4)
    assert state_size.kv_cache_bytes(**sizes, kv_heads=64) == pytest.approx(343.6e9, rel=1e-4)


def test_published_states_are_named_by_what_they_contain():
    recipe = state_size.preset("fp32 master + fp32 moments")
    assert state_size.training_state(175e9, recipe).total_bytes == pytest.approx(2.1e12)
    with pytest.raises(ValueError, match="did you mean 'fp32 weights'"):
        state_size.preset("fp32 weigths")


def test_the_lesson():
    assert interval.units_expected(100, 10, 0.03) == pytest.approx(118.69, abs=5e-3)
    assert interval.units_expected(100, 100, 0.03) == pytest.approx(667.65, abs=5e-3)


def test_a_twenty_minute_interval_cannot_promise_ten_minutes():
    broken = promises.check_contract(1_200, 37, rpo_s=600, return_s=397, rto_s=300)
    assert "RPO: an interval of 1200 s with a write of 37 s can lose 1237 s, promised at most 600 s" in broken[0]
    assert "save at least every 563 s" in broken[0]
    assert broken[1].startswith("RTO: recovery takes 397 s, promised at most 300 s")


def test_peak_from_the_closed_form():
    got = scaling.peak(scaling.Reliability(accelerator_mtbf_h=50_000, write_s=37))
    assert got.count == pytest.approx(0.7968121300200199 * 50_000 * 3600 / 37, rel=1e-6)


@pytest.mark.parametrize(("restart_s", "expected"), [(0, 3.876e6), (300, 450e3), (600, 247e3), (1_800, 90e3)])
def test_peaks_with_restarts(restart_s, expected):
    got = scaling.peak(scaling.Reliability(accelerator_mtbf_h=50_000, write_s=37, restart_s=restart_s))
    assert got.count == pytest.approx(expected, rel=6e-3)


def test_hourly_saves_make_65k_slower_than_32k():
    fixed = scaling.Reliability(accelerator_mtbf_h=24 / 0.0065 * 8, write_s=60, restart_s=600, interval_s=3_600)
    got = scaling.useful_throughput(np.array([32_768.0, 65_536.0]), fixed)
    assert got == pytest.approx([14_500, 11_800], rel=5e-3)


def test_spares_under_bursts():
    load = 13.312
    assert spares.burst_shortage(22, load, 0, 8) == pytest.approx(0.00987, rel=1e-3)
    assert spares.burst_shortage(22, load, 0.05, 8) == pytest.approx(
        0.0916, abs=5e-5
    )  # 9.3 % where it was first simulated
    assert spares.spares_for_bursts(load, 0.01, 0.05, 8).spares == 33


def test_hourly_saves_cost_a_known_sum():
    hourly = interval.waste(3_600, 37, 13_284)
    best = interval.waste(interval.exact_s(37, 13_284), 37, 13_284)
    assert 16_384 * 2.5 * 24 * (hourly - best) == pytest.approx(65.6e3, abs=100)
    assert math.isclose(interval.waste_first_order(3_600, 37, 13_284), 0.1458, abs_tol=5e-5)


@pytest.mark.parametrize(("mtbf_min", "printed_min"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_optima_printed_under_dalys_figures(mtbf_min, printed_min):
    got = interval.daly_higher_order_s(5 * 60, mtbf_min * 60)
    assert got / 60 == pytest.approx(printed_min, rel=6e-3)
