"""One page of answers for a cluster: how often it fails, how often to save, what it costs, what helps, how sure it is.

Each figure carries its basis: given by the user, computed from what was given, or resting on named assumptions.
"""

from __future__ import annotations

import msgspec

from closeranks.plan import corruption, protections, spares
from closeranks.plan.checks import PlanInputError
from closeranks.plan.cluster import ASSUMED_PARTS, Cluster
from closeranks.plan.explain import Step, explain
from closeranks.plan.job_changes import Growth, growth_of, helps_of
from closeranks.plan.job_failures import Failures, Range, failures_of, spares_of
from closeranks.plan.job_saving import SavePlan, Waste, save_plan_of, waste_of
from closeranks.plan.job_times import times_of
from closeranks.plan.rates import SECONDS_PER_HOUR
from closeranks.plan.recovery import Budget, DailyCost, daily_cost

__all__ = ["Answer", "Exposure", "Range", "answer"]


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Silent corruption, and how many saves to keep."""

    interval_h: float
    chance_per_step: float
    chance_per_day: float
    keep: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole page."""

    accelerators: int
    nodes: int
    failures: Failures
    save: SavePlan
    waste: Waste
    recovery: Budget
    recovery_day: DailyCost
    spares: spares.SpareAnswer
    growth: Growth
    exposure: Exposure | None
    helps: tuple[protections.Ranked, ...]
    dominates: str
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]
    settings: tuple[str, ...]
    explain: tuple[Step, ...]


def _warnings(cluster: Cluster, save: SavePlan, waste: Waste, failures: Failures) -> tuple[str, ...]:
    found = list(save.broken)
    found += [f"{one.name} {one.reason}" for one in save.formulas if not one.holds]
    if waste.share.value > 0.5:  # noqa: PLR2004 - said in the text
        found.append(f"more than half of the time is lost ({waste.share.value:.0%}): fewer accelerators may do as much")
    if save.mode == "background" and save.write_s > failures.mtbf_h.value * SECONDS_PER_HOUR / 5:
        found.append("the write takes over a fifth of the MTBF: the first-order figure for background saves is rough")
    if save.mode == "background" and save.interval_s.value < save.write_s:
        found.append("the interval is shorter than the write: writes queue up and the newest durable save grows older")
    if cluster.saving.mode == "blocking" and cluster.recovery.warm_share:
        found.append("warm recoveries are taken to lose no work")
    if cluster.fault:
        kinds = ", ".join(sorted({entry.kind for entry in cluster.fault}))
        found.append(f"faults of kind {kinds} are left out here; closeranks simulate plays them")
    return tuple(found)


_ASSUMPTIONS = (
    ("hardware.per_node", "{hardware.per_node} accelerators in a node"),
    ("hardware.price_per_accelerator_h", "${hardware.price_per_accelerator_h:g} per accelerator-hour"),
    ("job.recipe", "a save holds {job.recipe}"),
    ("job.step_s", "a step takes {job.step_s:g} s"),
    ("store.gigabytes_per_s", "the store takes {store.gigabytes_per_s:g} GB/s"),
    ("recovery.detect_s", "a failure is seen after {recovery.detect_s:g} s"),
    ("recovery.restart_s", "processes run again after {recovery.restart_s:g} s"),
    ("recovery.warm_up_s", "speed is normal after {recovery.warm_up_s:g} s more"),
    ("repair.mean_h", "a node is back after {repair.mean_h:g} h on average"),
    ("corruption.per_accelerator_h", "{corruption.per_accelerator_h:g} silent corruptions per accelerator-hour"),
    ("corruption.detection_delay_s", "corruption is found after {corruption.detection_delay_s:g} s"),
)


def _assumed(cluster: Cluster) -> tuple[str, ...]:
    missing = [text.format(**_sections(cluster)) for key, text in _ASSUMPTIONS if key not in cluster.given]
    parts = [
        f"{entry.name}: MTBF {entry.mtbf_h:,.0f} h" + (f", one for {entry.serves:g}" if entry.serves != 1 else "")
        for entry in cluster.part
        if entry in ASSUMED_PARTS and f"part.{entry.name}" not in cluster.given
    ]
    return (*parts, *missing)


def _sections(cluster: Cluster) -> dict[str, object]:
    return {name: getattr(cluster, name) for name in cluster.__struct_fields__}


def answer(cluster: Cluster) -> Answer:
    """Return every answer for a cluster.

    Raises:
        PlanInputError: recoveries and failures together leave no time to train.

    Source: the modules of ``closeranks.plan`` as named by each; nothing is computed here that they do not define.

    """
    hardware = cluster.hardware
    nodes = max(1, -(-hardware.accelerators // hardware.per_node))
    failures = failures_of(cluster, nodes)
    mtbf_s = failures.mtbf_h.value * SECONDS_PER_HOUR
    times = times_of(cluster, mtbf_s)
    if times.recovery_s >= 5 * mtbf_s:
        expected = f"recovery far below the MTBF of {mtbf_s:.4g} s"
        raise PlanInputError("recovery", expected, f"{times.recovery_s:.4g} s", "shorten it, or use fewer accelerators")
    save = save_plan_of(cluster, times, failures)
    chosen_s = save.interval_s.value
    waste = waste_of(cluster, times, failures, chosen_s)
    spare = spares_of(cluster, failures, nodes)
    exposure = None
    if cluster.corruption.per_accelerator_h:
        rate = corruption.exposure(hardware.accelerators, cluster.corruption.per_accelerator_h, cluster.job.step_s)
        exposure = Exposure(
            interval_h=rate.interval_h,
            chance_per_step=rate.chance_per_step,
            chance_per_day=rate.chance_per_day,
            keep=corruption.checkpoints_to_keep(cluster.corruption.detection_delay_s, chosen_s),
        )
    recovering_s = min(times.recovery_s, 86_400 / failures.per_day.value)
    shares = {"saving": waste.saving_share, "rework": waste.rework_share, "recovery": waste.recovery_share}
    largest = max(shares, key=lambda name: shares[name])
    top = failures.parts[0]
    return Answer(
        accelerators=hardware.accelerators,
        nodes=nodes,
        failures=failures,
        save=save,
        waste=waste,
        recovery=times.budget,
        recovery_day=daily_cost(recovering_s, failures.per_day.value, hardware.accelerators),
        spares=spare,
        growth=growth_of(cluster, times, failures),
        exposure=exposure,
        helps=helps_of(cluster, times, failures, chosen_s, spare),
        dominates=f"{top.name} causes {top.share:.0%} of failures; {largest} takes {shares[largest]:.1%} of all time",
        assumed=_assumed(cluster),
        warnings=_warnings(cluster, save, waste, failures),
        settings=_settings(save, spare, exposure),
        explain=explain(cluster, times, failures, save, waste),
    )


def _settings(save: SavePlan, spare: spares.SpareAnswer, exposure: Exposure | None) -> tuple[str, ...]:
    every = max(1, round(save.interval_s.value))
    keep = f" --keep last={exposure.keep}" if exposure else ""
    return (
        f"closeranks run --store STORE --save-every {every}s{keep} SCRIPT",
        f"hold {spare.spares} spare nodes ready",
    )
