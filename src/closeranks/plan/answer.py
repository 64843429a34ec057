"""One page of answers for a cluster: how often it fails, how often to save, what it costs, what helps, how sure it is.

Each figure carries its basis: given by the user, computed from what was given, or resting on named assumptions.
"""

from __future__ import annotations

import msgspec
import numpy as np

from closeranks.plan import corruption, interval, money, protections, regime, scaling, spares, state_size
from closeranks.plan.background import async_interval_s, async_waste
from closeranks.plan.checks import PlanInputError
from closeranks.plan.cluster import ASSUMED_PARTS, Cluster
from closeranks.plan.confidence import MtbfEstimate, estimate_mtbf
from closeranks.plan.domains import Domain
from closeranks.plan.finite import Conditions, FiniteAnswer, plan_finite
from closeranks.plan.promises import check_contract, longest_interval_s
from closeranks.plan.rates import SECONDS_PER_HOUR, PartRate, cascade
from closeranks.plan.recovery import Budget, DailyCost, daily_cost
from closeranks.plan.varying import equivalent_s, spread_samples

HOURS_PER_DAY = 24.0
CURVE_FOLDS = (0.125, 0.177, 0.25, 0.354, 0.5, 0.707, 1.0, 1.414, 2.0, 2.83, 4.0, 5.66, 8.0)
COUNT_FOLDS = (0.25, 0.5, 1.0, 2.0, 4.0)


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its interval; ``low`` and ``high`` are equal to it where no failure count was given."""

    value: float
    low: float
    high: float


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """How often the job fails and by what, the largest first."""

    mtbf_h: Range
    per_day: Range
    parts: tuple[PartRate, ...]
    node_losses_per_day: float
    basis: str


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


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Silent corruption, and how many saves to keep."""

    interval_h: float
    chance_per_step: float
    chance_per_day: float
    keep: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A formula with its numbers put in."""

    name: str
    formula: str
    numbers: str


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
    commands: tuple[str, ...]
    explain: tuple[Step, ...]


def _domains(cluster: Cluster, nodes: int) -> tuple[Domain, ...]:
    found = []
    for entry in cluster.domain:
        each = entry.nodes_each or nodes
        found.append(Domain(name=entry.name, nodes_each=each, count=max(nodes / each, 1.0), per_day=entry.per_day))
    return tuple(found)


def _measured(cluster: Cluster) -> MtbfEstimate | None:
    """Return the job's MTBF from the user's count, or None without one."""
    if cluster.measured is None:
        return None
    units = cluster.hardware.accelerators / cluster.measured.unit_accelerators
    return estimate_mtbf(cluster.measured.failures, cluster.measured.unit_h / units, cluster.measured.confidence)


def _failures(cluster: Cluster, nodes: int) -> Failures:
    summed = cascade(float(cluster.hardware.accelerators), tuple(entry.part() for entry in cluster.part))
    shared = _domains(cluster, nodes)
    rows = [*summed.parts]
    rows += [
        PartRate(name=one.name, count=one.count, failures_per_h=one.count * one.per_day / HOURS_PER_DAY, share=0.0)
        for one in shared
    ]
    total = sum(row.failures_per_h for row in rows)
    losses = summed.failures_per_day + sum(one.count * one.per_day * one.nodes_each for one in shared)
    mtbf = Range(value=1 / total, low=1 / total, high=1 / total)
    basis = "sum of the parts"
    estimate = _measured(cluster)
    if estimate is not None:
        value = estimate.mtbf_h if np.isfinite(estimate.mtbf_h) else estimate.low_h
        mtbf = Range(value=value, low=estimate.low_h, high=estimate.high_h)
        sure = f"{estimate.confidence:.0%} interval"
        basis = (
            f"your {estimate.failures} failures, {sure}"
            if estimate.failures
            else f"no failure seen: planned with the {estimate.confidence:.0%} lower bound"
        )
        losses *= (1 / value) / total
    scale = 1 / mtbf.value / total
    parts = (
        PartRate(
            name=row.name, count=row.count, failures_per_h=row.failures_per_h * scale, share=row.failures_per_h / total
        )
        for row in rows
    )
    high_rate = HOURS_PER_DAY / mtbf.low
    low_rate = HOURS_PER_DAY / mtbf.high if np.isfinite(mtbf.high) else 0.0
    return Failures(
        mtbf_h=mtbf,
        per_day=Range(value=HOURS_PER_DAY / mtbf.value, low=low_rate, high=high_rate),
        parts=tuple(sorted(parts, key=lambda row: -row.failures_per_h)),
        node_losses_per_day=losses,
        basis=basis,
    )


def _spares(cluster: Cluster, failures: Failures, nodes: int) -> spares.SpareAnswer:
    """Return the spares for parts under repair and for domains that return together; none helps where all is out."""
    shared = {entry.name for entry in cluster.domain}
    single = sum(part.failures_per_h for part in failures.parts if part.name not in shared) * cluster.repair.mean_h
    loads = spares.burst_loads(single, cluster.repair.burst_share, cluster.repair.burst_nodes)
    rates = {part.name: part.failures_per_h for part in failures.parts}
    for entry in cluster.domain:
        if 0 < entry.nodes_each < nodes:
            loads[entry.nodes_each] = loads.get(entry.nodes_each, 0.0) + rates[entry.name] * entry.out_h
    if set(loads) == {1} or (not cluster.repair.burst_share and not cluster.domain):
        return spares.spares_needed(single, cluster.promise.shortage)
    return spares.spares_for_batches(loads, cluster.promise.shortage)


class _Times(msgspec.Struct, frozen=True, kw_only=True):
    """The times of saving and recovery that everything below uses, in seconds."""

    state_bytes: float
    write_s: float  # as it pauses or as it runs behind
    effective_write_s: float  # its fixed equivalent where it varies
    budget: Budget
    recovery_s: float  # mean over warm and cold


def _times(cluster: Cluster, mtbf_s: float) -> _Times:
    size = cluster.job.state_bytes
    if not size and cluster.job.params:
        size = state_size.training_state(cluster.job.params, state_size.preset(cluster.job.recipe)).total_bytes
    bandwidth = cluster.store.gigabytes_per_s * 1e9
    write_s = cluster.saving.write_s or size / bandwidth
    effective_s = write_s
    if cluster.store.slowest_fold > 1:
        samples = spread_samples(write_s, cluster.store.slowest_fold)
        effective_s = equivalent_s(samples, mtbf_s)
    load_s = cluster.recovery.load_s or (size / bandwidth if size else write_s)
    budget = Budget(
        detect_s=cluster.recovery.detect_s,
        restart_s=cluster.recovery.restart_s,
        load_s=load_s,
        warm_up_s=cluster.recovery.warm_up_s,
    )
    warm = cluster.recovery.warm_share
    mean_s = warm * cluster.recovery.warm_s + (1 - warm) * budget.total_s
    return _Times(state_bytes=size, write_s=write_s, effective_write_s=effective_s, budget=budget, recovery_s=mean_s)


def _best_interval_s(cluster: Cluster, times: _Times, mtbf_s: float) -> float:
    if cluster.saving.mode == "background":
        return float(async_interval_s(cluster.saving.pause_s, times.effective_write_s, mtbf_s))
    return float(interval.exact_s(times.effective_write_s, mtbf_s / (1 - cluster.recovery.warm_share)))


def _waste_at(cluster: Cluster, times: _Times, mtbf_s: float, interval_s: float) -> float:
    """Return the share of time lost at an interval, in [0, 1]."""
    if cluster.saving.mode == "background":
        given = (cluster.saving.pause_s, times.effective_write_s, mtbf_s, times.recovery_s)
        return min(float(async_waste(max(interval_s, times.effective_write_s), *given)), 1.0)
    warm = cluster.recovery.warm_share
    kept = float(interval.efficiency(interval_s, times.effective_write_s, mtbf_s / (1 - warm), times.budget.total_s))
    return 1 - kept / (1 + warm * cluster.recovery.warm_s / mtbf_s)


def _finite(cluster: Cluster, times: _Times, mtbf_s: float) -> FiniteAnswer | None:
    """Return the plan for a job of known length, saved in the foreground; None where no length was given."""
    if not cluster.job.work_h or cluster.saving.mode == "background":
        return None
    met = Conditions(write_s=times.effective_write_s, mtbf_s=mtbf_s, restart_s=times.budget.total_s)
    return plan_finite(cluster.job.work_h * SECONDS_PER_HOUR, met)


def _save_plan(cluster: Cluster, times: _Times, failures: Failures) -> SavePlan:
    mtbf_s = failures.mtbf_h.value * SECONDS_PER_HOUR
    low_s, high_s = failures.mtbf_h.low * SECONDS_PER_HOUR, failures.mtbf_h.high * SECONDS_PER_HOUR
    best_s = _best_interval_s(cluster, times, mtbf_s)
    chosen_s, note = best_s, "the optimum"
    edges = [_best_interval_s(cluster, times, edge) if np.isfinite(edge) else float("inf") for edge in (low_s, high_s)]
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
    folds = np.array(CURVE_FOLDS) * best_s
    curve = tuple(
        CurvePoint(interval_s=float(at), waste=_waste_at(cluster, times, mtbf_s, float(at)))
        for at in folds
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


def _waste(cluster: Cluster, times: _Times, failures: Failures, chosen_s: float) -> Waste:
    def at(mtbf_h: float) -> float:
        return _waste_at(cluster, times, min(mtbf_h, 1e12) * SECONDS_PER_HOUR, chosen_s)

    share = Range(value=at(failures.mtbf_h.value), low=at(failures.mtbf_h.high), high=at(failures.mtbf_h.low))
    mtbf_s = failures.mtbf_h.value * SECONDS_PER_HOUR
    pause_s = cluster.saving.pause_s if cluster.saving.mode == "background" else times.effective_write_s
    cold = 1 - cluster.recovery.warm_share
    behind_s = times.effective_write_s if cluster.saving.mode == "background" else times.effective_write_s / 2
    raw = np.array([pause_s / chosen_s, cold * (chosen_s / 2 + behind_s) / mtbf_s, times.recovery_s / mtbf_s])
    saving_share, rework_share, recovery_share = share.value * raw / raw.sum()  # first-order shares of the exact sum

    def price(part: float) -> float:
        hardware = cluster.hardware
        return money.waste_per_day(hardware.accelerators, part, hardware.price_per_accelerator_h)

    lost_s = cold * (chosen_s / 2 + behind_s) + times.recovery_s
    each = money.failure_cost(cluster.hardware.accelerators, lost_s, cluster.hardware.price_per_accelerator_h)
    return Waste(
        share=share,
        money_per_day=Range(value=price(share.value), low=price(share.low), high=price(share.high)),
        saving_share=float(saving_share),
        rework_share=float(rework_share),
        recovery_share=float(recovery_share),
        failure_money=each,
    )


def _growth(cluster: Cluster, times: _Times, failures: Failures) -> Growth:
    now = float(cluster.hardware.accelerators)
    each_s = failures.mtbf_h.value * now * SECONDS_PER_HOUR  # the MTBF of one accelerator's share of everything
    serial, utilisation = cluster.scaling.serial_share, cluster.scaling.utilisation
    plain_case = cluster.saving.mode == "blocking" and not cluster.recovery.warm_share

    def useful(count: float) -> float:
        at_s = cluster.saving.interval_s or _best_interval_s(cluster, times, each_s / count)
        kept = 1 - _waste_at(cluster, times, each_s / count, at_s)
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


def _helps(
    cluster: Cluster, times: _Times, failures: Failures, chosen_s: float, spare: spares.SpareAnswer
) -> tuple[protections.Ranked, ...]:
    """Return what would help most, each change alone, by the money it saves a day less what it costs.

    Only running costs that follow from the inputs are counted: a faster store or better parts are priced at zero,
    so their row says the most that they may cost.
    """
    hardware, mtbf_s = cluster.hardware, failures.mtbf_h.value * SECONDS_PER_HOUR
    day = money.waste_per_day(hardware.accelerators, 1.0, hardware.price_per_accelerator_h)
    bare = 1 - _waste_at(cluster, times, mtbf_s, chosen_s)

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
        new = _times(changed, mtbf_s * slower)
        kept_interval = changed.saving.interval_s or _best_interval_s(changed, new, mtbf_s * slower)
        return 1 - _waste_at(changed, new, mtbf_s * slower, kept_interval)

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
    best_s = _best_interval_s(cluster, times, mtbf_s)
    if abs(best_s - chosen_s) > 1e-9 * best_s:
        rows.append(row("save at the optimum", 1 - _waste_at(cluster, times, mtbf_s, best_s)))
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
    return tuple(found)


def _explain(cluster: Cluster, times: _Times, failures: Failures, save: SavePlan, waste: Waste) -> tuple[Step, ...]:
    mtbf_s = failures.mtbf_h.value * SECONDS_PER_HOUR
    rate = " + ".join(f"{part.failures_per_h:.4g}" for part in failures.parts)
    ratio = times.effective_write_s / mtbf_s
    x, _ = interval.exact_root(ratio)
    steps = [
        Step(name="MTBF", formula="1 / sum of count/mtbf", numbers=f"1 / ({rate}) = {failures.mtbf_h.value:.4g} h"),
        Step(
            name="state",
            formula="params x bytes per parameter",
            numbers=f"{cluster.job.params:g} x {state_size.preset(cluster.job.recipe).bytes_per_param:g} = "
            f"{times.state_bytes:.4g} bytes"
            if cluster.job.params and not cluster.job.state_bytes
            else f"{times.state_bytes:.4g} bytes as given",
        ),
        Step(
            name="write",
            formula="state / bandwidth",
            numbers=f"{times.state_bytes:.4g} / {cluster.store.gigabytes_per_s * 1e9:.4g} = {times.write_s:.4g} s",
        ),
    ]
    if save.mode == "blocking":
        steps += [
            Step(
                name="exact interval",
                formula="M x with x + ln(1 - x) + d/M = 0",
                numbers=f"d/M = {times.effective_write_s:.4g}/{mtbf_s:.6g} = {ratio:.4g}, x = {float(x):.6g}, "
                f"M x = {mtbf_s * float(x):.5g} s",
            ),
            Step(
                name="Young",
                formula="sqrt(2 d M)",
                numbers=f"sqrt(2 x {times.effective_write_s:.4g} x {mtbf_s:.6g}) = "
                f"{save.formulas[-1].interval_s:.5g} s",
            ),
            Step(
                name="waste",
                formula="1 - t / (M e^(R/M) (e^((t + d)/M) - 1))",
                numbers=f"t = {save.interval_s.value:.5g}, R = {times.budget.total_s:.4g}: {waste.share.value:.4%}",
            ),
        ]
    else:
        steps += [
            Step(
                name="background interval",
                formula="max(w, sqrt(2 p M))",
                numbers=f"max({times.effective_write_s:.4g}, sqrt(2 x {cluster.saving.pause_s:.4g} x {mtbf_s:.6g})) = "
                f"{_best_interval_s(cluster, times, mtbf_s):.5g} s",
            ),
            Step(
                name="waste",
                formula="p/t + (t/2 + w + R)/M",
                numbers=f"t = {save.interval_s.value:.5g}, R = {times.recovery_s:.4g}: {waste.share.value:.4%}",
            ),
        ]
    price = cluster.hardware.price_per_accelerator_h
    steps.append(
        Step(
            name="money a day",
            formula="24 N price waste",
            numbers=f"24 x {cluster.hardware.accelerators} x {price:g} x {waste.share.value:.5f} = "
            f"{waste.money_per_day.value:,.0f}",
        )
    )
    return tuple(steps)


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
    failures = _failures(cluster, nodes)
    mtbf_s = failures.mtbf_h.value * SECONDS_PER_HOUR
    times = _times(cluster, mtbf_s)
    if times.recovery_s >= 5 * mtbf_s:
        expected = f"recovery far below the MTBF of {mtbf_s:.4g} s"
        raise PlanInputError("recovery", expected, f"{times.recovery_s:.4g} s", "shorten it, or use fewer accelerators")
    save = _save_plan(cluster, times, failures)
    chosen_s = save.interval_s.value
    waste = _waste(cluster, times, failures, chosen_s)
    spare = _spares(cluster, failures, nodes)
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
        growth=_growth(cluster, times, failures),
        exposure=exposure,
        helps=_helps(cluster, times, failures, chosen_s, spare),
        dominates=f"{top.name} causes {top.share:.0%} of failures; {largest} takes {shares[largest]:.1%} of all time",
        assumed=_assumed(cluster),
        warnings=_warnings(cluster, save, waste, failures),
        commands=_commands(save, spare, exposure),
        explain=_explain(cluster, times, failures, save, waste),
    )


def _commands(save: SavePlan, spare: spares.SpareAnswer, exposure: Exposure | None) -> tuple[str, ...]:
    keep = f" --keep {exposure.keep}" if exposure else ""
    every = max(1, round(save.interval_s.value))
    return (f"closeranks run --save-every {every}s{keep} --spares {spare.spares} train.py",)
