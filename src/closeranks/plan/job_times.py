"""What saving and recovery take in a described job, and the waste that follows at any interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from closeranks.plan import interval, state_size
from closeranks.plan.background import async_interval_s, async_waste
from closeranks.plan.recovery import Budget

if TYPE_CHECKING:
    from closeranks.plan.cluster import Cluster


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The times of saving and recovery that everything below uses, in seconds."""

    state_bytes: float
    write_s: float  # as it pauses or as it runs behind
    effective_write_s: float  # its fixed equivalent where it varies
    budget: Budget
    recovery_s: float  # mean over warm and cold


def times_of(cluster: Cluster, mtbf_s: float) -> Times:
    """Return sizes and times of a cluster: what was given, and what follows from size and bandwidth.

    Source: size over bandwidth; ``varying.equivalent_s`` for writes that vary.
    """
    size = cluster.job.state_bytes
    if not size and cluster.job.params:
        size = state_size.training_state(cluster.job.params, state_size.preset(cluster.job.recipe)).total_bytes
    bandwidth = cluster.store.gigabytes_per_s * 1e9
    write_s = cluster.saving.write_s or size / bandwidth
    effective_s = write_s
    if cluster.store.slowest_fold > 1:
        from closeranks.plan.varying import equivalent_s, spread_samples  # arrays, which most questions do not need

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
    return Times(state_bytes=size, write_s=write_s, effective_write_s=effective_s, budget=budget, recovery_s=mean_s)


def best_interval_s(cluster: Cluster, times: Times, mtbf_s: float) -> float:
    """Return the best interval for the way in which the job saves and recovers.

    Source: ``background.async_interval_s``; ``interval.exact_s`` at the rate of cold failures.
    """
    if cluster.saving.mode == "background":
        return float(async_interval_s(cluster.saving.pause_s, times.effective_write_s, mtbf_s))
    return float(interval.exact_s(times.effective_write_s, mtbf_s / (1 - cluster.recovery.warm_share)))


def waste_at(cluster: Cluster, times: Times, mtbf_s: float, interval_s: float) -> float:
    """Return the share of time lost at an interval, in [0, 1].

    Source: ``background.async_waste``; ``interval.efficiency`` with warm failures as in ``recovery_aware``.
    """
    if cluster.saving.mode == "background":
        given = (cluster.saving.pause_s, times.effective_write_s, mtbf_s, times.recovery_s)
        return min(float(async_waste(max(interval_s, times.effective_write_s), *given)), 1.0)
    warm = cluster.recovery.warm_share
    kept = float(interval.efficiency(interval_s, times.effective_write_s, mtbf_s / (1 - warm), times.budget.total_s))
    return 1 - kept / (1 + warm * cluster.recovery.warm_s / mtbf_s)
