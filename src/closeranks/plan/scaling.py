"""Does adding accelerators still help: useful throughput against their number, and the peak beyond which it falls."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from closeranks.plan import interval as saving
from closeranks.plan.checks import PlanInputError, Real, not_negative, plain, positive, share

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_PER_HOUR = 3600.0
_GRID_POINTS = 24
_COUNT_MAX = 1e9
_STEP = math.log(_COUNT_MAX) / (_GRID_POINTS - 1)
_GOLDEN = (math.sqrt(5) - 1) / 2
_NARROW = 1e-8  # a smooth peak is flat within the square root of float precision


def amdahl(count: Real, serial_share: Real) -> Real:
    """Return the scaling efficiency S(N)/N of a job with a serial part. Source: Amdahl 1967, 1/(1 + s (N - 1))."""
    return plain(1 / (1 + share("serial_share", serial_share) * (positive("count", count) - 1)))


def ring_all_reduce_s(count: Real, payload_bytes: Real, bytes_per_s: Real, latency_s: Real = 0.0) -> Real:
    """Return the seconds of one ring all-reduce: each rank sends 2 (N - 1)/N of the payload in 2 (N - 1) rounds.

    Source: Patarasuk and Yuan 2009; Thakur et al. 2005 for the latency term.
    """
    n, payload = positive("count", count), not_negative("payload_bytes", payload_bytes)
    sent = 2 * (n - 1) / n * payload / positive("bytes_per_s", bytes_per_s)
    return plain(sent + 2 * (n - 1) * not_negative("latency_s", latency_s))


def ring_efficiency(
    count: Real, compute_s: Real, payload_bytes: Real, bytes_per_s: Real, latency_s: Real = 0.0, overlap: Real = 0.0
) -> Real:
    """Return compute over step time when ``overlap`` of the all-reduce hides behind compute.

    Source: ``ring_all_reduce_s``; weak scaling, step = compute + exposed communication.
    """
    compute = positive("compute_s", compute_s)
    exposed = ring_all_reduce_s(count, payload_bytes, bytes_per_s, latency_s) * (1 - share("overlap", overlap))
    return plain(compute / (compute + exposed))


def measured(count: Real, at_counts: Real, efficiencies: Real) -> Real:
    """Return the efficiency between measured points, linear in log N, flat outside of them.

    Source: interpolation of the user's own points; nothing is extrapolated.
    """
    import numpy as np

    known = np.atleast_1d(positive("at_counts", at_counts))
    values = np.atleast_1d(share("efficiencies", efficiencies))
    if known.shape != values.shape or np.any(np.diff(known) <= 0):
        way_out = "sort the points and give one efficiency for each"
        raise PlanInputError("at_counts", "rising counts, as many as efficiencies", known.tolist(), way_out)
    return plain(np.asarray(np.interp(np.log(positive("count", count)), np.log(known), values), dtype=np.float64))


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """What failures cost one size of job: the MTBF of one accelerator's share of everything, and times in seconds.

    ``interval_s`` is None for saving at the best interval of each size, or a fixed interval for all sizes.
    """

    accelerator_mtbf_h: float
    write_s: float
    restart_s: float = 0.0
    interval_s: float | None = None


def failure_efficiency(count: Real, reliability: Reliability) -> Real:
    """Return one minus the failure overhead of a job on ``count`` accelerators.

    Source: Daly 2006 (complete wall-time model), at an MTBF of m/N.
    """
    mtbf_s = (
        positive("accelerator_mtbf_h", reliability.accelerator_mtbf_h) * SECONDS_PER_HOUR / positive("count", count)
    )
    if reliability.interval_s is None:
        return saving.best_efficiency(reliability.write_s, plain(mtbf_s), reliability.restart_s)
    return saving.efficiency(reliability.interval_s, reliability.write_s, plain(mtbf_s), reliability.restart_s)


def useful_throughput(
    count: Real, reliability: Reliability, utilisation: float = 1.0, scaling: Callable[[Real], Real] | None = None
) -> Real:
    """Return useful throughput in units of one perfect accelerator: N x utilisation x scaling x failures.

    ``scaling`` maps counts to an efficiency in [0, 1] (for example ``lambda n: amdahl(n, 1e-6)``).

    Source: product of independent efficiencies, Google 2023 (ML productivity goodput), S x R x P.
    """
    scale = scaling(count) if scaling is not None else 1.0
    kept = failure_efficiency(count, reliability)
    return plain(positive("count", count) * share("utilisation", utilisation) * scale * kept)


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The number of accelerators beyond which more of them do less; ``limited`` is false if none is below 1e9."""

    count: float
    throughput: float
    efficiency: float
    limited: bool


def peak(reliability: Reliability, utilisation: float = 1.0, scaling: Callable[[Real], Real] | None = None) -> Peak:
    """Return where ``useful_throughput`` is largest.

    With the best interval and no restart the answer is closed: 2x + ln(1 - x) = 0, x = 0.79681, N = 0.79681 m/d.

    Source: ``peak_of`` on ``useful_throughput``.
    """
    return peak_of(lambda count: float(useful_throughput(count, reliability, utilisation, scaling)))


def peak_of(useful: Callable[[float], float]) -> Peak:
    """Return where a useful throughput with one peak is largest, to a few parts in 1e8 of the count.

    Source: golden-section search (Kiefer 1953) between the neighbours of the largest point of a logarithmic grid.
    """
    values = [useful(math.exp(_STEP * index)) for index in range(_GRID_POINTS)]
    best = values.index(max(values))
    low, high = _STEP * max(best - 1, 0), _STEP * min(best + 1, _GRID_POINTS - 1)
    ends = low, high
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = useful(math.exp(left)), useful(math.exp(right))
    while high - low > _NARROW:
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = useful(math.exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = useful(math.exp(right))
    count = max(map(math.exp, (*ends, (low + high) / 2)), key=useful)
    most = useful(count)
    return Peak(count=count, throughput=most, efficiency=most / count, limited=best < _GRID_POINTS - 1)
