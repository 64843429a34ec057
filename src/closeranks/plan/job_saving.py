"""How often a described job should save under its promises, and what is lost then: time, money, to what."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from closeranks.plan import money, regime
from closeranks.plan.finite import Conditions, FiniteAnswer, plan_finite
from closeranks.plan.job_failures import Failures, Range
from closeranks.plan.job_times import Times, best_interval_s, waste_at
from closeranks.plan.promises import check_contract, longest_interval_s
from closeranks.plan.rates import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from closeranks.plan.cluster import Cluster

CURVE_FOLDS = (0.125, 0.177, 0.25, 0.354, 0.5, 0.707, 1.0, 1.414, 2.0, 2.83, 4.0, 5.66, 8.0)


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The exact waste at one interval."""

    interval_s: float
    waste: float


class SavePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How often to save. ``formulas`` compares the textbook; ``broken`` lists promises that cannot be kept."""

    mode: str
    state_bytes: float
    write_s: float
    interval_s: Range
    steps: int
    curve: tuple[CurvePoint, ...]
    formulas: tuple[regime.FormulaAnswer, ...]
    broken: tuple[str, ...]
    note: str
    finite: FiniteAnswer | None


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """The share of time that is lost, its money, and where it goes."""

    share: Range
    money_per_day: Range
    saving_share: float
    rework_share: float
    recovery_share: float
    failure_money: float


def _finite(cluster: Cluster, times: Times, mtbf_s: float) -> FiniteAnswer | None:
    """Return the plan for a job of known length, saved in the foreground; None where no length was given."""
    if not cluster.job.work_h or cluster.saving.mode == "background":
        return None
    met = Conditions(write_s=times.effective_write_s, mtbf_s=mtbf_s, restart_s=times.budget.total_s)
    return plan_finite(cluster.job.work_h * SECONDS_PER_HOUR, met)


def save_plan_of(cluster: Cluster, times: Times, failures: Failures) -> SavePlan:
    """Return the interval to use: the optimum, or the promise's bound, or the user's own, and how it compares.

    Source: ``job_times.best_interval_s``, ``promises``, ``regime``.
    """
    mtbf_s = failures.mtbf_h.value * SECONDS_PER_HOUR
    low_s, high_s = failures.mtbf_h.low * SECONDS_PER_HOUR, failures.mtbf_h.high * SECONDS_PER_HOUR
    best_s = best_interval_s(cluster, times, mtbf_s)
    chosen_s, note = best_s, "the optimum"
    edges = [best_interval_s(cluster, times, edge) if math.isfinite(edge) else float("inf") for edge in (low_s, high_s)]
    promise = cluster.promise
    if promise.rpo_s and best_s + times.write_s > promise.rpo_s:
        bound_s = longest_interval_s(promise.rpo_s, times.write_s)
        if bound_s > 0:
            chosen_s, note = bound_s, f"bound by the RPO of {promise.rpo_s:g} s; the optimum is {best_s:.4g} s"
    if cluster.saving.interval_s:
        chosen_s, note = cluster.saving.interval_s, f"as you set it; the optimum is {best_s:.4g} s"
    if note != "the optimum":
        edges = [chosen_s, chosen_s]
    rpo_s, rto_s = promise.rpo_s or float("inf"), promise.rto_s or float("inf")
    broken = check_contract(chosen_s, times.write_s, rpo_s, times.budget.total_s, rto_s)
    curve = tuple(
        CurvePoint(interval_s=at, waste=waste_at(cluster, times, mtbf_s, at))
        for at in (fold * best_s for fold in CURVE_FOLDS)
        if cluster.saving.mode != "background" or at >= times.effective_write_s
    )
    return SavePlan(
        mode=cluster.saving.mode,
        state_bytes=times.state_bytes,
        write_s=times.write_s,
        interval_s=Range(value=chosen_s, low=edges[0], high=edges[1]),
        steps=max(1, round(chosen_s / cluster.job.step_s)),
        curve=curve,
        formulas=regime.compare_intervals(times.effective_write_s, mtbf_s, times.budget.total_s),
        broken=broken,
        note=note,
        finite=_finite(cluster, times, mtbf_s),
    )


def waste_of(cluster: Cluster, times: Times, failures: Failures, chosen_s: float) -> Waste:
    """Return the waste at the chosen interval with its interval, split by what takes it.

    Source: ``job_times.waste_at``; the split keeps first-order proportions.
    """

    def at(mtbf_h: float) -> float:
        return waste_at(cluster, times, min(mtbf_h, 1e12) * SECONDS_PER_HOUR, chosen_s)

    share = Range(value=at(failures.mtbf_h.value), low=at(failures.mtbf_h.high), high=at(failures.mtbf_h.low))
    mtbf_s = failures.mtbf_h.value * SECONDS_PER_HOUR
    pause_s = cluster.saving.pause_s if cluster.saving.mode == "background" else times.effective_write_s
    cold = 1 - cluster.recovery.warm_share
    behind_s = times.effective_write_s if cluster.saving.mode == "background" else times.effective_write_s / 2
    raw = (pause_s / chosen_s, cold * (chosen_s / 2 + behind_s) / mtbf_s, times.recovery_s / mtbf_s)
    # First-order shares of the exact sum.
    saving_share, rework_share, recovery_share = (share.value * part / sum(raw) for part in raw)

    def price(part: float) -> float:
        hardware = cluster.hardware
        return money.waste_per_day(hardware.accelerators, part, hardware.price_per_accelerator_h)

    lost_s = cold * (chosen_s / 2 + behind_s) + times.recovery_s
    each = money.failure_cost(cluster.hardware.accelerators, lost_s, cluster.hardware.price_per_accelerator_h)
    return Waste(
        share=share,
        money_per_day=Range(value=price(share.value), low=price(share.low), high=price(share.high)),
        saving_share=saving_share,
        rework_share=rework_share,
        recovery_share=recovery_share,
        failure_money=each,
    )
