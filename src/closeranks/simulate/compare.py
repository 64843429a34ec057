"""Policies side by side over many replicas that meet the same faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from closeranks.simulate.book import Outcome, Part
from closeranks.simulate.policy import Policy
from closeranks.simulate.scenario import DAY_S, Scenario
from closeranks.simulate.statistics import Estimate, estimate


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over all replicas. Shares are of wall time; money is of the whole job, spares apart."""

    name: str
    replicas: int
    outcomes: dict[str, int]
    reasons: tuple[str, ...]  # of runs that failed, the most frequent first
    goodput: Estimate
    waste_per_day: Estimate  # money
    wall_s: Estimate
    incidents_per_day: Estimate
    down_h_per_day: Estimate  # hours
    steps_lost_per_day: Estimate
    shares: dict[Part, float]
    rungs: dict[str, int]
    worst_loss_s: float
    worst_return_s: float
    broken_promises: int  # replicas with any
    promise: str  # the first broken one in words
    formula: float | None  # goodput of the closed form, where one holds


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A policy against the first one, replica by replica."""

    name: str
    against: str
    goodput: Estimate
    saved_per_day: Estimate  # money; positive: it costs less than the first
    verdict: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation found."""

    replicas: int
    asked: int
    seed: int
    days: float
    nodes: int
    accelerators: int
    mtbf_h: float
    results: tuple[Result, ...]
    differences: tuple[Difference, ...]
    events: int
    took_s: float
    assumed: tuple[str, ...] = ()


def result_of(policy: Policy, outcomes: Sequence[Outcome], scenario: Scenario, formula: float | None) -> Result:
    """Put the replicas of a policy together."""
    wall_s = sum(o.wall_s for o in outcomes)
    shares = {part: sum(o.seconds.get(part, 0.0) for o in outcomes) / wall_s for part in Part}
    rungs: Counter[str] = Counter()
    for outcome in outcomes:
        rungs.update(outcome.rungs)
    failed = Counter(o.reason for o in outcomes if o.outcome == "failed")
    return Result(
        name=policy.name,
        replicas=len(outcomes),
        outcomes=dict(Counter(o.outcome for o in outcomes)),
        reasons=tuple(reason for reason, _ in failed.most_common(3)),
        goodput=estimate([o.goodput for o in outcomes]),
        waste_per_day=estimate([_money(o, scenario) for o in outcomes]),
        wall_s=estimate([o.wall_s for o in outcomes]),
        incidents_per_day=estimate([o.incidents * DAY_S / o.wall_s for o in outcomes]),
        down_h_per_day=estimate([24 * o.down_s / o.wall_s for o in outcomes]),
        steps_lost_per_day=estimate([o.steps_lost * DAY_S / o.wall_s for o in outcomes]),
        shares={part: share for part, share in shares.items() if share > 0},
        rungs=dict(sorted(rungs.items())),
        worst_loss_s=max(o.worst_loss_s for o in outcomes),
        worst_return_s=max(o.worst_return_s for o in outcomes),
        broken_promises=sum(bool(o.problems) for o in outcomes),
        promise=next((problem for o in outcomes for problem in o.problems), ""),
        formula=formula,
    )


def difference_of(results: tuple[Result, Result], runs: tuple[Sequence[Outcome], Sequence[Outcome]]) -> Difference:
    """The second against the first: equal faults cancel out, so that few replicas tell small differences apart."""
    first, second = results
    pairs = list(zip(*runs, strict=True))
    goodput = estimate([b.goodput - a.goodput for a, b in pairs])
    per_day = first.waste_per_day.mean / max(1 - first.goodput.mean, 1e-12)
    saved = estimate([(b.goodput - a.goodput) * per_day for a, b in pairs])
    if not goodput.sure:
        verdict = "no difference that so many replicas could tell"
    else:
        verdict = f"{second.name if goodput.mean > 0 else first.name} is better"
    return Difference(name=second.name, against=first.name, goodput=goodput, saved_per_day=saved, verdict=verdict)


def _money(outcome: Outcome, scenario: Scenario) -> float:
    return (1 - outcome.goodput) * scenario.price_per_s * DAY_S
