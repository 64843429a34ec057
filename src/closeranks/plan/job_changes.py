"""What changes would do to a described job: more accelerators, other recoveries, better parts, faster writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from closeranks.plan import money, protections, scaling, spares
from closeranks.plan.job_times import Times, best_interval_s, times_of, waste_at
from closeranks.plan.rates import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from closeranks.plan.cluster import Cluster
    from closeranks.plan.job_failures import Failures

COUNT_FOLDS = (0.25, 0.5, 1.0, 2.0, 4.0)


class CountPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Useful throughput (in perfect accelerators) at one number of accelerators."""

    accelerators: float
    useful: float
    efficiency: float


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Does adding accelerators help, and where it stops to."""

    points: tuple[CountPoint, ...]
    peak: scaling.Peak
    verdict: str


def growth_of(cluster: Cluster, times: Times, failures: Failures) -> Growth:
    """Return useful throughput around the present size, the peak, and a verdict in words.

    Source: ``plan.scaling``; background and warm jobs by their own waste.
    """
    now = float(cluster.hardware.accelerators)
    each_s = failures.mtbf_h.value * now * SECONDS_PER_HOUR  # the MTBF of one accelerator's share of everything
    serial, utilisation = cluster.scaling.serial_share, cluster.scaling.utilisation
    plain_case = cluster.saving.mode == "blocking" and not cluster.recovery.warm_share

    def useful(count: float) -> float:
        at_s = cluster.saving.interval_s or best_interval_s(cluster, times, each_s / count)
        kept = 1 - waste_at(cluster, times, each_s / count, at_s)
        return count * utilisation * float(scaling.amdahl(count, serial)) * kept

    points = tuple(
        CountPoint(accelerators=count, useful=useful(count), efficiency=useful(count) / count)
        for count in (fold * now for fold in COUNT_FOLDS)
        if count >= 1
    )
    if plain_case:
        job = scaling.Reliability(
            accelerator_mtbf_h=each_s / SECONDS_PER_HOUR,
            write_s=times.effective_write_s,
            restart_s=times.budget.total_s,
            interval_s=cluster.saving.interval_s or None,
        )
        top = scaling.peak(job, utilisation, lambda count: scaling.amdahl(count, serial))
    else:
        top = scaling.peak_of(useful)
    gain = useful(now * 1.1) / useful(now) - 1 if useful(now) > 0 else 0.0
    if now >= top.count:
        verdict = f"no: past {top.count:,.0f} more accelerators are slower"
    else:
        verdict = f"yes: 10 % more accelerators give {gain:.1%} more; the peak is at {top.count:,.0f}"
    return Growth(points=points, peak=top, verdict=verdict)


def helps_of(
    cluster: Cluster, times: Times, failures: Failures, chosen_s: float, spare: spares.SpareAnswer
) -> tuple[protections.Ranked, ...]:
    """Return what would help most, each change alone, by the money it saves a day less what it costs.

    Only running costs that follow from the inputs are counted: a faster store or better parts are priced at zero,
    so their row says the most that they may cost.

    Source: ``job_times.waste_at`` before and after each change; ``plan.money`` for the price.
    """
    hardware, mtbf_s = cluster.hardware, failures.mtbf_h.value * SECONDS_PER_HOUR
    day = money.waste_per_day(hardware.accelerators, 1.0, hardware.price_per_accelerator_h)
    bare = 1 - waste_at(cluster, times, mtbf_s, chosen_s)

    def row(name: str, kept: float, cost: float = 0.0) -> protections.Ranked:
        saved = (kept - bare) * day
        gained = saved / cost if cost else float("inf") if saved > 0 else 0.0
        return protections.Ranked(
            name=name,
            efficiency=kept,
            saved_per_day=saved,
            cost_per_day=cost,
            net_per_day=saved - cost,
            return_on_cost=gained,
        )

    def after(changed: Cluster, slower: float = 1.0) -> float:
        new = times_of(changed, mtbf_s * slower)
        kept_interval = changed.saving.interval_s or best_interval_s(changed, new, mtbf_s * slower)
        return 1 - waste_at(changed, new, mtbf_s * slower, kept_interval)

    replace = msgspec.structs.replace
    idle = money.waste_per_day(max(spare.spares, 1) * hardware.per_node, 1.0, hardware.price_per_accelerator_h)
    top = failures.parts[0]
    phase, seconds = times.budget.longest
    halved = replace(cluster.recovery, **{"load_s": times.budget.load_s, phase: seconds / 2})
    rows = [
        row(f"half the failures of {top.name}", after(cluster, 1 / (1 - top.share / 2))),
        row("writes twice as fast", after(replace(cluster, saving=replace(cluster.saving, write_s=times.write_s / 2)))),
        row(f"half of the longest recovery phase ({phase[:-2]})", after(replace(cluster, recovery=halved))),
    ]
    best_s = best_interval_s(cluster, times, mtbf_s)
    if abs(best_s - chosen_s) > 1e-9 * best_s:
        rows.append(row("save at the optimum", 1 - waste_at(cluster, times, mtbf_s, best_s)))
    if cluster.recovery.warm_share < 0.8:  # noqa: PLR2004 - what a warm ladder reaches, named in the row
        warm = replace(cluster.recovery, warm_share=0.8)
        kept = after(replace(cluster, recovery=warm))
        rows.append(row(f"80 % warm in {warm.warm_s:g} s, from {spare.spares} hot spares", kept, idle))
        out = 0.8 * spare.load * hardware.per_node / hardware.accelerators
        rows.append(row(f"80 % warm in {warm.warm_s:g} s, shrinking until repaired", kept * max(1 - out, 0.0)))
    if cluster.saving.mode == "blocking":
        pause_s = min(cluster.saving.pause_s, times.write_s)
        behind = replace(cluster.saving, mode="background", pause_s=pause_s)
        rows.append(row(f"write in the background (pause {pause_s:.3g} s)", after(replace(cluster, saving=behind))))
    return tuple(sorted(rows, key=lambda one: -one.net_per_day))
