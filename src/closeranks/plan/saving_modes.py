"""Save intervals beyond the blocking write: asynchronous, on two levels, against silent errors, with varying times.

Times are seconds, rates per second. First-order formulas say so; ``plan.monte_carlo`` checks them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from closeranks.plan import interval as blocking
from closeranks.plan.checks import Floats, PlanInputError, Real, not_negative, plain, positive, share
from closeranks.plan.special import golden_minimum


class AsyncAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An interval for background writes. ``bounded`` is true where the write, not the failures, sets it."""

    interval_s: float
    unbounded_s: float
    bounded: bool
    waste: float
    reason: str


def async_interval_s(pause_s: Real, write_s: Real, mtbf_s: Real) -> Real:
    """Return the best interval when training pauses ``pause_s`` and the write goes on behind it for ``write_s``.

    Saves cannot overtake each other, so the write time is its lower bound.

    Source: own, first order: max(w, sqrt(2 p M)).
    """
    young = blocking.young_s(pause_s, mtbf_s)
    return plain(np.maximum(positive("write_s", write_s), young))


def async_waste(interval_s: Real, pause_s: Real, write_s: Real, mtbf_s: Real, restart_s: Real = 0.0) -> Real:
    """Return the first-order waste of asynchronous saving; a save counts only once it is written.

    Source: own, p/t + (t/2 + w + R)/M: work is lost back to the newest save that had finished.
    """
    interval, mtbf, write = positive("interval_s", interval_s), positive("mtbf_s", mtbf_s), positive("write_s", write_s)
    if np.any(interval < write):
        way_out = "save less often, or writes queue up and the newest durable save grows older for ever"
        raise PlanInputError("interval_s", "at least write_s", interval_s, way_out)
    lost = interval / 2 + write + not_negative("restart_s", restart_s)
    return plain(not_negative("pause_s", pause_s) / interval + lost / mtbf)


def plan_async(pause_s: float, write_s: float, mtbf_s: float, restart_s: float = 0.0) -> AsyncAnswer:
    """Return interval and waste of asynchronous saving and which of the two limits sets the interval.

    Source: own, see ``async_interval_s`` and ``async_waste``.
    """
    unbounded = float(blocking.young_s(pause_s, mtbf_s))
    chosen = max(unbounded, float(positive("write_s", write_s)))
    bounded = unbounded < write_s
    text = (
        f"bounded by the write: {write_s:g} s is longer than the {unbounded:.4g} s that the pause alone would ask for"
        if bounded
        else f"set by the pause of {pause_s:g} s against an MTBF of {mtbf_s:g} s"
    )
    cost = float(async_waste(chosen, pause_s, write_s, mtbf_s, restart_s))
    return AsyncAnswer(interval_s=chosen, unbounded_s=unbounded, bounded=bounded, waste=cost, reason=text)


class LevelsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals of each level, cheapest first, and what they waste together (writes and rework, no restarts)."""

    intervals_s: tuple[float, ...]
    overhead: float


def plan_levels(rates_per_s: tuple[float, ...], writes_s: tuple[float, ...]) -> LevelsAnswer:
    """Return the best interval of each storage level; level l is what failures of rate l need.

    ``rates_per_s[0]`` are the light failures that the cheapest level survives, and so on; costs are independent.

    Source: Benoit et al. 2017, "Towards optimal multi-level checkpointing", first order:
    W_l = sqrt(2 C_l / lambda_l), overhead = sum sqrt(2 lambda_l C_l).
    """
    if len(rates_per_s) != len(writes_s) or not rates_per_s:
        way_out = "give one write time for each failure rate"
        raise PlanInputError("writes_s", f"{len(rates_per_s)} values", len(writes_s), way_out)
    rates, writes = positive("rates_per_s", np.array(rates_per_s)), positive("writes_s", np.array(writes_s))
    overhead = float(np.sqrt(2 * rates * writes).sum())
    return LevelsAnswer(intervals_s=tuple(map(float, np.sqrt(2 * writes / rates))), overhead=overhead)


class SilentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The interval between verified saves, and the first-order overhead there."""

    interval_s: float
    overhead: float


def plan_verified(write_s: float, verify_s: float, fail_stop_per_s: float, silent_per_s: float) -> SilentAnswer:
    """Return how often to verify and save when some errors are silent until the next verification.

    Source: Aupy, Benoit, Herault, Robert, Vivien and Zaidouni 2013; Benoit and Robert 2016:
    W = sqrt((V + C)/(l_s + l_f/2)), H = 2 sqrt((V + C)(l_s + l_f/2)).
    """
    pressure = float(not_negative("silent_per_s", silent_per_s) + not_negative("fail_stop_per_s", fail_stop_per_s) / 2)
    cost = float(not_negative("write_s", write_s) + not_negative("verify_s", verify_s))
    if pressure <= 0 or cost <= 0:
        raise PlanInputError("rates and costs", "some of each above zero", "none", "nothing to plan without both")
    return SilentAnswer(interval_s=(cost / pressure) ** 0.5, overhead=2 * (cost * pressure) ** 0.5)


def equivalent_s(samples_s: Floats, mtbf_s: float) -> float:
    """Return the fixed time that costs as much as one drawn anew from ``samples_s`` at each attempt.

    Exact for exponential failures: put it for ``write_s`` (or ``restart_s``) in any formula of ``plan.interval``.
    It is below the mean, because a long write that is cut has been drawn too: -M ln E[e^(-d/M)].
    ``samples_s``: float64 [samples], equally likely.

    Source: own; renewal argument of Daly 2006, eq. 20, with the attempt's success chance E[e^(-(t + d)/M)].
    """
    samples = np.atleast_1d(not_negative("samples_s", samples_s))
    mtbf = float(positive("mtbf_s", mtbf_s))
    return float(-mtbf * np.log1p(np.expm1(-samples / mtbf).mean()))


def spread_samples(typical_s: float, slowest_fold: float, count: int = 201) -> Floats:
    """Return times spread evenly from ``typical_s`` to ``slowest_fold`` times it, float64 [count].

    Writes into a shared store vary 2 to 3 fold; restarts take 3 to 5 times a write.

    Source: midpoints of a uniform law, so that the mean is exact.
    """
    if slowest_fold < 1:
        raise PlanInputError("slowest_fold", "at least 1", slowest_fold, "1 means that it does not vary")
    middle = (np.arange(count) + 0.5) / count
    return np.asarray(positive("typical_s", typical_s) * (1 + (slowest_fold - 1) * middle), dtype=np.float64)


class FiniteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A finite job cut into equal segments. The last segment ends without a save unless one was asked for."""

    segments: int
    interval_s: float
    wall_s: float
    efficiency: float


def _finite_wall_s(  # noqa: PLR0913, PLR0917 - one argument for each quantity of the formula
    segments: int, work_s: float, write_s: float, mtbf_s: float, restart_s: float, downtime_s: float, *, save_last: bool
) -> float:
    writes = segments if save_last else segments - 1
    segment_s = (work_s + writes * write_s) / segments  # equal segments: the cost is convex in each length
    with np.errstate(over="ignore"):
        return float((mtbf_s + downtime_s) * np.exp(restart_s / mtbf_s) * segments * np.expm1(segment_s / mtbf_s))


def plan_finite(  # noqa: PLR0913 - one argument for each quantity of the formula
    work_s: float,
    write_s: float,
    mtbf_s: float,
    restart_s: float = 0.0,
    downtime_s: float = 0.0,
    *,
    save_last: bool = True,
) -> FiniteAnswer:
    """Return the best whole number of segments for a job of ``work_s``: short jobs need few saves or none.

    Source: Daly 2006, eq. 20, per segment; Toueg and Babaoglu 1984 for the equal split.
    """
    positive("work_s", work_s)
    mtbf = float(positive("mtbf_s", mtbf_s))
    guess = work_s / max(float(blocking.exact_s(write_s, mtbf)), work_s / 1e9)

    def wall(segments: int) -> float:
        return _finite_wall_s(segments, work_s, write_s, mtbf, restart_s, downtime_s, save_last=save_last)

    low, high = 1, max(2, int(2 * guess) + 2)
    while high - low > 2:  # noqa: PLR2004 - the bound is said beside it
        third = (high - low) // 3
        left, right = low + third, high - third
        low, high = (low, right) if wall(left) <= wall(right) else (left, high)
    best = min(range(low, high + 1), key=wall)
    segment_s = (work_s + (best if save_last else best - 1) * write_s) / best
    interval_s = work_s if best == 1 else segment_s - write_s
    return FiniteAnswer(segments=best, interval_s=interval_s, wall_s=wall(best), efficiency=work_s / wall(best))


class RecoveryAwareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An interval when a failure recovers warm (from a peer's memory, little lost) with some chance, else cold."""

    interval_s: float
    waste: float
    cold_share: float


def plan_recovery_aware(  # noqa: PLR0913, PLR0917 - each is one measured number
    write_s: float,
    mtbf_s: float,
    warm_share: float,
    warm_restart_s: float,
    cold_restart_s: float,
    warm_lost_s: float = 0.0,
) -> RecoveryAwareAnswer:
    """Return the interval for saves that only cold recoveries will read.

    Warm recoveries lose ``warm_lost_s`` whatever the interval is, so saves are spaced for the cold rate alone;
    all recoveries still cost time. First order in the rates.

    Source: own; Young 1974 with the rate of failures that return to the save, as in Benoit et al. 2017 for a level.
    """
    cold = 1 - float(share("warm_share", warm_share))
    mtbf = float(positive("mtbf_s", mtbf_s))
    if cold <= 0:
        way_out = "keep some saves for the loss that has not been seen yet: give 0.99"
        raise PlanInputError("warm_share", "less than 1", warm_share, way_out)
    interval_s = float(blocking.exact_s(write_s, mtbf / cold))
    saved = float(blocking.waste(interval_s, write_s, mtbf / cold))
    recovering = (warm_share * (warm_restart_s + warm_lost_s) + cold * cold_restart_s) / mtbf
    return RecoveryAwareAnswer(interval_s=interval_s, waste=1 - (1 - saved) / (1 + recovering), cold_share=cold)


def best_async_interval_s(pause_s: Real, write_s: Real, mtbf_s: Real) -> Real:
    """Return the minimiser of ``async_waste`` found numerically, for checking the closed form.

    Source: Kiefer 1953 on ``async_waste``.
    """
    write = positive("write_s", write_s)
    high = write + 4 * np.asarray(blocking.young_s(pause_s, mtbf_s)) + 1
    return plain(golden_minimum(write, high, lambda t: async_waste(np.maximum(t, write), pause_s, write, mtbf_s)))
