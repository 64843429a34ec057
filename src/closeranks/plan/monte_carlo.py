"""Simulated answers where no exact one exists, and the check of those where it does.

Randomness is a seeded ``numpy.random.Generator`` that the caller passes in. Each estimate has its standard error.
"""

from __future__ import annotations

from math import gamma
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from closeranks.plan.checks import Floats, NotSolvableError, not_negative, positive, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from closeranks.plan.verified import Rates


_ROUNDS_MOST = 200_000


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated mean and its standard error; ``z_of`` is how many of them a claimed value is away."""

    mean: float
    standard_error: float
    replicas: int

    def z_of(self, claimed: float) -> float:
        """Return (mean - claimed) in standard errors."""
        return (self.mean - claimed) / self.standard_error


def _estimate(samples: Floats) -> Estimate:
    error = float(samples.std(ddof=1) / np.sqrt(samples.size))
    return Estimate(mean=float(samples.mean()), standard_error=error, replicas=samples.size)


def weibull_gaps(mtbf_s: float, shape: float) -> Callable[[Generator, int], Floats]:
    """Return a drawer of Weibull gaps with that mean; shape 1 is exponential.

    Source: Weibull 1951, mean = scale x Gamma(1 + 1/k).
    """
    scale = float(positive("mtbf_s", mtbf_s)) / gamma(1 + 1 / float(positive("shape", shape)))
    return lambda rng, size: np.asarray(scale * rng.weibull(shape, size), dtype=np.float64)


class BlockingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that saves every ``interval_s`` of compute and pauses ``write_s`` for it; seconds."""

    work_s: float
    interval_s: float
    write_s: float
    restart_s: float = 0.0
    downtime_s: float = 0.0


def simulate_wall_s(
    run: BlockingRun, gaps: Callable[[Generator, int], Floats], rng: Generator, replicas: int
) -> Estimate:
    """Return the wall time of ``run`` under failures with the given gaps, all replicas in step as arrays.

    A restart can be cut by a failure and is begun again after the downtime; downtime cannot be cut. The last segment
    is saved too, and ``work_s`` is rounded to whole intervals, as in the formula.

    Raises:
        NotSolvableError: the job makes no progress worth the name; the text says what to change.

    Source: the process behind Daly 2006 (complete wall-time model), simulated as it stands.

    """
    whole("replicas", replicas, 2)
    segments = max(1, round(run.work_s / run.interval_s))
    left = np.full(replicas, segments, dtype=np.int64)
    clock, until_failure = np.zeros(replicas), gaps(rng, replicas)
    to_restart = np.zeros(replicas, dtype=bool)
    segment_s = run.interval_s + run.write_s
    for _ in range(_ROUNDS_MOST):
        live = left > 0
        if not live.any():
            return _estimate(clock * (run.work_s / (segments * run.interval_s)))
        need = np.where(to_restart, run.restart_s, segment_s)
        # Whole segments that fit before the next failure are done at once.
        fit = np.where(to_restart, 1, np.minimum(left, np.maximum(until_failure // segment_s, 1)))
        need = np.where(to_restart, need, need * fit)
        done, cut = live & (until_failure >= need), live & (until_failure < need)
        clock[done] += need[done]
        until_failure[done] -= need[done]
        left[done & ~to_restart] -= fit[done & ~to_restart].astype(np.int64)
        clock[cut] += until_failure[cut] + run.downtime_s
        to_restart = cut | (to_restart & ~done)
        count = int(cut.sum())
        if count:
            until_failure[cut] = gaps(rng, count)
    message = (
        f"run: expected to end within {_ROUNDS_MOST:,} failures and segments, got more; an interval of "
        f"{run.interval_s:g} s hardly ever fits between two failures: save more often"
    )
    raise NotSolvableError(message)


def simulate_async_waste(  # noqa: PLR0913 - one argument for each quantity of the formula
    *, interval_s: float, pause_s: float, write_s: float, mtbf_s: float, restart_s: float, rng: Generator, failures: int
) -> Estimate:
    """Return the waste of asynchronous saving per unit of wall time, one sample for each failure cycle (a ratio).

    Each cycle runs from a restart to the next failure; what counts is the work of the last save that had been
    written out when the failure came.

    Source: own; renewal cycles, ratio estimator with the delta method for its error.
    """
    positive("interval_s", interval_s)
    period = interval_s + float(not_negative("pause_s", pause_s))
    life = rng.exponential(mtbf_s, whole("failures", failures, 2))
    written = np.maximum(np.floor((life - write_s) / period), 0)  # save k starts at k periods and lands w later
    kept, spent = written * interval_s, life + restart_s
    ratio = kept.sum() / spent.sum()
    spread = kept - ratio * spent
    error = float(spread.std(ddof=1) / np.sqrt(failures) / spent.mean())
    return Estimate(mean=float(1 - ratio), standard_error=error, replicas=failures)


def simulate_shortage(
    *, load: float, spares: int, burst_share: float, burst_nodes: int, rng: Generator, samples: int
) -> Estimate:
    """Return how often more nodes are out than spares, from snapshots of the stationary batch process.

    Source: M/G/infinity with batches: a Poisson number of live events, each of its own size.
    """
    events = load / (1 - burst_share + burst_share * burst_nodes)
    live = rng.poisson(events, samples)
    bursts = rng.binomial(live, burst_share)
    out = live - bursts + bursts * burst_nodes
    return _estimate((out > spares).astype(np.float64))


def simulate_domains(rates_per_day: Floats, rng: Generator, events: int) -> Estimate:
    """Return hours between failures of a job, drawn as the first of all domains to fail. float64 [domains] in.

    Source: Marshall and Olkin 1967, minimum of independent exponential shocks.
    """
    firsts = rng.exponential(1 / positive("rates_per_day", rates_per_day), (events, np.size(rates_per_day))).min(axis=1)
    return _estimate(24 * firsts)


def simulate_levels(
    intervals_s: tuple[float, float],
    writes_s: tuple[float, float],
    rates_per_s: tuple[float, float],
    rng: Generator,
    failures: int,
) -> Estimate:
    """Return the overhead of two-level saving over bare work: writes and rework, restarts free.

    Near saves come every ``intervals_s[0]``, far ones in place of every k-th near one; a light failure returns to the
    newest save of any level, a heavy one to the newest far save. One ratio sample for each far period's end.

    Source: the process behind Benoit et al. 2017, simulated as it stands.
    """
    near_s, every = intervals_s[0], max(1, round(intervals_s[1] / intervals_s[0]))
    total = sum(rates_per_s)
    kept = np.zeros(failures)
    spent = np.zeros(failures)
    for index in range(failures):  # one far period each: renewal points are the far saves
        done, clock = 0, 0.0
        life = rng.exponential(1 / total)
        while done < every:
            need = near_s + (writes_s[1] if done == every - 1 else writes_s[0])
            if life >= need:
                life -= need
                clock += need
                done += 1
                continue
            clock += life
            life = rng.exponential(1 / total)
            if rng.random() * total >= rates_per_s[0]:
                done = 0
        kept[index], spent[index] = every * near_s, clock
    return _estimate(spent / kept - 1)


def simulate_verified(  # noqa: PLR0913 - the quantities of plan.verified
    *, interval_s: float, write_s: float, verify_s: float, rates: Rates, restart_s: float, rng: Generator, samples: int
) -> Estimate:
    """Return the wall time of one interval of work with its verification and save, all samples in step.

    Source: the pattern of Benoit and Robert 2016, simulated as it stands.
    """
    clock = np.zeros(whole("samples", samples, 2))
    open_ = np.arange(samples)
    never = np.inf
    while open_.size:
        stop = rng.exponential(1 / rates.fail_stop_per_s, open_.size) if rates.fail_stop_per_s else never
        silent = rng.exponential(1 / rates.silent_per_s, open_.size) if rates.silent_per_s else never
        checked = interval_s + verify_s
        corrupt = np.broadcast_to(silent < interval_s, open_.size)
        need = np.where(corrupt, checked, checked + write_s)
        cut = np.broadcast_to(stop < need, open_.size)
        clock[open_] += np.where(cut, stop, need)
        again = cut | corrupt
        clock[open_[again]] += restart_s
        open_ = open_[again]
    return _estimate(clock)
