"""How often a described job fails and by what, with the interval of the user's own count; and its spares."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from closeranks.plan import spares
from closeranks.plan.confidence import MtbfEstimate, estimate_mtbf
from closeranks.plan.domains import Domain
from closeranks.plan.rates import PartRate, cascade

if TYPE_CHECKING:
    from closeranks.plan.cluster import Cluster

HOURS_PER_DAY = 24.0


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


def failures_of(cluster: Cluster, nodes: int) -> Failures:
    """Return the rate of the job: parts and shared domains, scaled to the user's own count where there is one.

    Source: ``rates.cascade``, ``domains``, ``confidence.estimate_mtbf``.
    """
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
        value = estimate.mtbf_h if math.isfinite(estimate.mtbf_h) else estimate.low_h
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
    low_rate = HOURS_PER_DAY / mtbf.high if math.isfinite(mtbf.high) else 0.0
    return Failures(
        mtbf_h=mtbf,
        per_day=Range(value=HOURS_PER_DAY / mtbf.value, low=low_rate, high=high_rate),
        parts=tuple(sorted(parts, key=lambda row: -row.failures_per_h)),
        node_losses_per_day=losses,
        basis=basis,
    )


def spares_of(cluster: Cluster, failures: Failures, nodes: int) -> spares.SpareAnswer:
    """Return the spares for parts under repair and for domains that return together; none helps where all is out.

    Source: ``spares.spares_for_batches``.
    """
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
