"""A cluster and a policy as a virtual run: which seats, what recoveries take, how often what fails."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from closeranks.decide import saving
from closeranks.decide.save_interval import Losses, Prior
from closeranks.decide.state import Settings
from closeranks.plan.corruption import checkpoints_to_keep
from closeranks.plan.job_failures import failures_of
from closeranks.plan.job_times import Times, best_interval_s, times_of
from closeranks.simulate.policy import UNLIMITED, Policy
from closeranks.simulate.saves import Tier
from closeranks.simulate.setup import Setup
from closeranks.simulate.strikes import Kind
from closeranks.simulate.timing import timing_of

if TYPE_CHECKING:
    from closeranks.plan.cluster import Cluster
    from closeranks.plan.reliability_file import Reliability

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
SEATS_ALL: Final = 8  # up to so many nodes, each has a seat of its own
SEATS_NAMED: Final = 2  # beyond: seats for lost nodes, beside the one that stands for all others
_PATIENCE = 20.0  # a job with an end is given up after so many times its work


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One way to fail: so many times a second in all, each taking so many nodes for so long."""

    name: str
    kind: Kind
    per_s: float
    nodes_each: int = 1
    lasts_s: float = 0.0
    spread: bool = False  # how long it lasts is exponential, not fixed
    factor: float = 1.0
    notice_s: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What is equal under every policy."""

    nodes: int
    accelerators: int
    price_per_s: float  # of the whole job
    horizon_s: float
    until: int  # steps; 0: the horizon ends it
    sources: tuple[Source, ...]
    mtbf_s: float
    law_shape: float = 1.0  # of the gaps between node losses: Weibull, 1 is exponential
    repair_sigma: float = 0.0  # of lognormal repairs; 0: exponential
    counted: int = 0  # failures behind the rate, 0: it is taken as certain


def scenario_of(cluster: Cluster, *, days: float = 0.0, reliability: Reliability | None = None) -> Scenario:
    """Everything that can happen to a cluster in so many days, or until its job is done.

    Source: the rates of ``plan.job_failures``; repairs and laws of a ``reliability.toml`` where one is given.
    """
    hardware = cluster.hardware
    nodes = max(1, -(-hardware.accelerators // hardware.per_node))
    failures = failures_of(cluster, nodes)
    step_s = cluster.job.step_s
    work_s = cluster.job.work_h * HOUR_S
    horizon_s = days * DAY_S or (_PATIENCE * work_s if work_s else 30 * DAY_S)
    law = reliability.law if reliability is not None else None
    repair = reliability.repair if reliability is not None else None
    return Scenario(
        nodes=nodes,
        accelerators=hardware.accelerators,
        price_per_s=hardware.accelerators * hardware.price_per_accelerator_h / HOUR_S,
        horizon_s=horizon_s,
        until=math.ceil(work_s / step_s) if work_s and not days else 0,
        sources=_sources(cluster, nodes, repair.mean_h * HOUR_S if repair is not None else 0.0),
        mtbf_s=failures.mtbf_h.value * HOUR_S,
        law_shape=law.parameters["shape"] if law is not None and law.name.lower() == "weibull" else 1.0,
        repair_sigma=math.sqrt(2 * math.log(repair.mean_h / repair.median_h))
        if repair is not None and repair.mean_h > repair.median_h > 0
        else 0.0,
        counted=0 if cluster.measured is None else cluster.measured.failures,
    )


def _sources(cluster: Cluster, nodes: int, repair_s: float) -> tuple[Source, ...]:
    shared = {entry.name: entry for entry in cluster.domain}
    repair_s = repair_s or cluster.repair.mean_h * HOUR_S
    found: list[Source] = []
    for part in failures_of(cluster, nodes).parts:
        per_s = part.failures_per_h / HOUR_S
        entry = shared.get(part.name)
        if entry is not None:
            each = entry.nodes_each or nodes
            found.append(
                Source(name=part.name, kind=Kind.DOMAIN, per_s=per_s, nodes_each=each, lasts_s=entry.out_h * HOUR_S)
            )
            continue
        burst = cluster.repair.burst_share
        single = Source(name=part.name, kind=Kind.NODE, per_s=per_s * (1 - burst), lasts_s=repair_s, spread=True)
        found.append(single)
        if burst:
            each = min(cluster.repair.burst_nodes, nodes)
            found.append(
                Source(name=part.name, kind=Kind.DOMAIN, per_s=per_s * burst, nodes_each=each, lasts_s=repair_s)
            )
    corruption = cluster.corruption
    if corruption.per_accelerator_h:
        per_s = cluster.hardware.accelerators * corruption.per_accelerator_h / HOUR_S
        lasts_s = corruption.detection_delay_s
        found.append(Source(name="corruption", kind=Kind.CORRUPTION, per_s=per_s, lasts_s=lasts_s))
    found += [
        Source(
            name=fault.kind,
            kind=Kind(fault.kind),
            per_s=fault.per_day / DAY_S,
            nodes_each=fault.nodes,
            lasts_s=fault.lasts_s,
            factor=fault.factor,
            notice_s=fault.notice_s,
        )
        for fault in cluster.fault
    ]
    return tuple(source for source in found if source.per_s > 0)


def setup_of(cluster: Cluster, policy: Policy, scenario: Scenario, *, every_step: bool = False) -> Setup:
    """The virtual run of a cluster under a policy.

    A job of many nodes has a seat for each of a few lost ones and one seat that stands for all others, which do the
    same at the same time. A loss of more nodes than there are such seats is told as the loss of those seats; one of at
    least half of the job as the loss of all.
    """
    times = times_of(cluster, scenario.mtbf_s)
    seats = scenario.nodes if scenario.nodes <= SEATS_ALL else 1 + SEATS_NAMED
    pause_s, tiers = _saving(cluster, policy, times, scenario.mtbf_s)
    distrust_s = cluster.corruption.detection_delay_s if policy.distrust_s is None else policy.distrust_s
    return Setup(
        settings=Settings(
            seats=seats,
            spares=min(policy.spares, seats) if policy.replicated else 0,
            limits=policy.limits or UNLIMITED,
            deadlines=policy.deadlines,
            tries_per_rung=policy.tries_per_rung,
            answers=policy.amended,
            canary=policy.canary,
        ),
        timing=timing_of(cluster, times, replicated=policy.replicated),
        bounds=policy.bounds,
        step_s=cluster.job.step_s,
        until=scenario.until,
        horizon_s=scenario.horizon_s,
        replicated=policy.replicated,
        tiers=tiers if policy.save else (),
        every=policy.every,
        saving=saving.Settings(
            rpo_s=policy.rpo_s or None,
            prior=Prior(mtbf_s=scenario.mtbf_s, source="the rates of the cluster"),
            history=Losses(),
        ),
        pause_s=pause_s,
        distrust_s=distrust_s,
        nodes=scenario.nodes,
        spare_nodes=policy.spares,
        every_step=every_step,
        rpo_s=policy.rpo_s,
        rto_s=policy.rto_s,
    )


def _saving(cluster: Cluster, policy: Policy, times: Times, mtbf_s: float) -> tuple[float, tuple[Tier, ...]]:
    """The pause of a save and where it goes; the store keeps enough to go back behind corruption."""
    background = cluster.saving.mode == "background"
    if policy.tier:
        return cluster.saving.pause_s, policy.tier
    interval_s = policy.save_every_s or policy.save_every_steps * cluster.job.step_s
    interval_s = interval_s or best_interval_s(cluster, times, mtbf_s)
    keep = max(Tier().keep, checkpoints_to_keep(cluster.corruption.detection_delay_s, interval_s) + 1)
    if background:
        return cluster.saving.pause_s, (Tier(write_s=times.effective_write_s, keep=keep),)
    return times.effective_write_s, (Tier(keep=keep),)
