"""How often to save: from what a save costs, how often something is lost, and what was promised. Seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from closeranks.plan.background import plan_async
from closeranks.plan.promises import longest_interval_s, worst_loss_s

if TYPE_CHECKING:
    from closeranks.plan.reliability_file import Reliability

LEAST_S: Final = 15.0
"""Nothing shorter is chosen unless it was asked for: the log of a store grows with every save and is never cut."""

SLOWDOWN: Final = 0.05
"""Assumed share by which a write in the background slows training, until it was measured."""

SETTLING_S: Final = 600.0
"""While only the first pause is known, which includes making the arena, it is measured again within this time."""

MARGIN: Final = 1.25
"""A write may take so many times as long as any that was seen, and a promise is kept all the same, if it can be."""

_DAY_S: Final = 86_400.0
_LOSSES_PER_NODE_DAY: Final = 6.5e-3
_LOSSES_PER_JOB_DAY: Final = 1.0


class _Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class EverySteps(_Value, frozen=True, tag=True):
    """After each so many steps, counted from the first step of the job."""

    steps: int

    def __post_init__(self) -> None:
        """Refuse what cannot be counted."""
        if self.steps < 1:
            raise ValueError(f"save interval: expected at least 1 step, got {self.steps}")


class EverySeconds(_Value, frozen=True, tag=True):
    """So many seconds after the last one."""

    seconds: float

    def __post_init__(self) -> None:
        """Refuse what is no time."""
        if not self.seconds > 0:
            raise ValueError(f"save interval: expected a time above zero, got {self.seconds:g} s")


class Prior(_Value, frozen=True):
    """What is believed before anything was seen; it weighs as much as one loss in that time."""

    mtbf_s: float
    source: str

    def __post_init__(self) -> None:
        """Refuse what is no time."""
        if not self.mtbf_s > 0:
            raise ValueError(f"prior: expected a mean time between losses above zero, got {self.mtbf_s:g} s")


class Losses(_Value, frozen=True):
    """What was seen: so many losses in so many seconds of a job of this size."""

    count: int = 0
    watched_s: float = 0.0
    source: str = ""


class Cost(_Value, frozen=True):
    """What a save takes, as measured."""

    pause_s: float  # training stands still
    settled: bool  # False: only the first pause was seen
    durable_s: float  # from the snapshot to the commit, at worst
    busy_s: float  # from the snapshot until the next one may be taken, mostly
    slowdown: float  # share by which training is slower meanwhile
    step_s: float  # no shorter interval is possible


class Choice(_Value, frozen=True):
    """An interval and its reason."""

    interval_s: float
    rpo_kept: bool
    reason: str


def prior_of(nodes: int) -> Prior:
    """What to believe of a job on so many nodes of which nothing is known.

    Source: 6.50 failures per 1,000 node-days (Kokolis et al. 2025, RSC-1); one a day of each job for what no node is to
    blame for (people, quotas, preemption, bugs) is an assumption of ours.
    """
    per_day = _LOSSES_PER_JOB_DAY + nodes * _LOSSES_PER_NODE_DAY
    return Prior(mtbf_s=_DAY_S / per_day, source=f"assumed for {nodes} node{'s' if nodes > 1 else ''}")


def history_of(known: Reliability, nodes: int) -> Losses:
    """What a fitted trace says about a job on so many of its units: its newest stretch, where the rate has changed.

    Source: superposition of Poisson processes, so that unit-hours count n to the hour.
    """
    rate = known.planning
    watched_h = rate.mtbf_h * rate.failures if rate.failures else known.source.unit_exposure_h
    return Losses(count=rate.failures, watched_s=3600 * watched_h / nodes, source=known.source.file)


def mtbf_of(prior: Prior, seen: tuple[Losses, ...]) -> tuple[float, str]:
    """Mean time between losses, and how it was arrived at.

    Source: posterior mean of a Poisson rate under a gamma prior of shape 1 (Gelman et al., Bayesian Data Analysis,
    section 2.6): (prior + time)/(1 + losses).
    """
    count, watched_s = sum(part.count for part in seen), sum(part.watched_s for part in seen)
    mtbf_s = (prior.mtbf_s + watched_s) / (1 + count)
    told = [f"{prior.source}: {spell(prior.mtbf_s)}"]
    told += [f"{part.source}: {part.count} in {spell(part.watched_s)}" for part in seen if part.watched_s > 0]
    return mtbf_s, "; ".join(told)


def choose(cost: Cost, mtbf_s: float, rpo_s: float | None) -> Choice:
    """The interval that loses least, within the promise; where it cannot be kept, as short as possible, and why.

    Source: ``plan.background.plan_async``, with the slowdown during a write added to the pause, and ``plan.promises``.
    """
    lost_s = cost.pause_s + cost.slowdown * cost.busy_s
    best = plan_async(max(lost_s, 1e-6), max(cost.busy_s, 1e-6), mtbf_s)
    interval_s = best.interval_s
    reason = f"bounded by a write of {spell(cost.busy_s)}" if best.bounded else f"a save costs {spell(lost_s)}"
    if interval_s < LEAST_S:
        interval_s, reason = LEAST_S, f"{reason}; nothing shorter unless asked for"
    if not cost.settled and interval_s > SETTLING_S:
        interval_s, reason = SETTLING_S, "the first pause includes making the arena: it is measured once more"
    if not best.holds and interval_s == best.interval_s:
        reason += "; losses come so fast that this is a rough figure"
    if interval_s < cost.step_s:
        interval_s, reason = cost.step_s, f"every step, of {spell(cost.step_s)}; {spell(interval_s)} would lose least"
    return _within(Choice(interval_s=interval_s, rpo_kept=True, reason=reason), cost, rpo_s)


def judge(every: EverySteps | EverySeconds, cost: Cost, mtbf_s: float, rpo_s: float | None) -> Choice:
    """What the user set, beside what would lose least, and whether it can be had and keeps the promise."""
    wanted_s = every.steps * cost.step_s if isinstance(every, EverySteps) else every.seconds
    asked = f"{every.steps} steps" if isinstance(every, EverySteps) else spell(every.seconds)
    reason = f"as asked, every {asked}; {spell(choose(cost, mtbf_s, rpo_s).interval_s)} would lose least"
    interval_s = max(wanted_s, cost.busy_s, cost.step_s)
    if interval_s > wanted_s:
        slow = f"a write takes {spell(cost.busy_s)}" if cost.busy_s > cost.step_s else f"a step {spell(cost.step_s)}"
        reason = f"every {asked} was asked for, but {slow}: as often as that allows"
    loss_s = worst_loss_s(max(interval_s, 1e-6), cost.durable_s)
    if rpo_s is None or loss_s <= rpo_s:
        return Choice(interval_s=interval_s, rpo_kept=True, reason=reason)
    broken = f"the RPO of {spell(rpo_s)} is not kept: up to {spell(loss_s)} can be lost; {reason}"
    return Choice(interval_s=interval_s, rpo_kept=False, reason=broken)


def _within(best: Choice, cost: Cost, rpo_s: float | None) -> Choice:
    if rpo_s is None or worst_loss_s(best.interval_s, MARGIN * cost.durable_s) <= rpo_s:
        return best
    least_s = max(cost.busy_s, cost.step_s, 1e-6)
    if worst_loss_s(least_s, cost.durable_s) <= rpo_s:
        bound_s = max(longest_interval_s(rpo_s, MARGIN * cost.durable_s), least_s)
        reason = f"bound by the RPO of {spell(rpo_s)}; {spell(best.interval_s)} would lose least"
        return Choice(interval_s=min(bound_s, best.interval_s), rpo_kept=True, reason=reason)
    why = (
        f"a write takes {spell(max(cost.busy_s, cost.durable_s))}; write faster, to a nearer tier, or promise less"
        if cost.busy_s >= cost.step_s
        else f"a step takes {spell(cost.step_s)}, a write {spell(cost.durable_s)}; make steps shorter or promise less"
    )
    loss_s = worst_loss_s(least_s, cost.durable_s)
    reason = (
        f"the RPO of {spell(rpo_s)} cannot be kept, up to {spell(loss_s)} can be lost: {why}; saving without a break"
    )
    return Choice(interval_s=least_s, rpo_kept=False, reason=reason)


def spell(seconds: float) -> str:
    """A time for people, e.g. ``0.31 s``, ``12.5 min``, ``9.2 h``."""
    for size_s, unit, from_s in ((3600.0, "h", 7200.0), (60.0, "min", 300.0)):
        if seconds >= from_s:
            return f"{_digits(seconds / size_s)} {unit}"
    return f"{_digits(seconds)} s"


def _digits(number: float) -> str:
    return f"{number:.3g}" if number < 999 else f"{number:,.0f}"  # noqa: PLR2004 - three digits say enough
