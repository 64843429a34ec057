"""Is it one process: tests for a trend and for changes of rate in a sequence of failures.

Everything runs in *exposure time*: calendar time stretched by the number of units in service, so that a growing fleet
is not mistaken for worse parts.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import numpy as np

from closeranks.plan.checks import Floats, positive
from closeranks.plan.special import chi2_quantile, gamma_q, normal_cdf

BINS_MOST = 200
EVENTS_PER_BIN = 5.0
CHANGES_MOST = 20


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Laplace's statistic: positive when failures come faster and faster. ``p`` is two-sided."""

    laplace: float
    p: float
    reason: str


def laplace_trend(positions: Floats, span: float) -> Trend:
    """Return the trend test for events at ``positions`` in (0, span) of exposure time.

    Source: Laplace 1773; Cox and Lewis 1966: U = (mean - T/2) / (T sqrt(1/12n)).
    """
    positive("span", span)
    count = positions.size
    if count < 2:  # noqa: PLR2004 - a mean of one says nothing
        return Trend(laplace=0.0, p=1.0, reason="too few failures for a trend test")
    u = float((positions.mean() - span / 2) / (span * math.sqrt(1 / (12 * count))))
    p = 2 * float(normal_cdf(-abs(u)))
    direction = "more and more often" if u > 0 else "more and more rarely"
    text = f"failures come {direction} (p = {p:.2g})" if p < 0.01 else f"no trend (p = {p:.2g})"  # noqa: PLR2004
    return Trend(laplace=u, p=p, reason=text)


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the record with one rate: positions in exposure time, failures, failures per unit of it."""

    begin: float
    end: float
    failures: int
    rate: float


def _dispersion(counts: Floats) -> float:
    """Return how much wilder than Poisson neighbouring bins are, from differences that a slow trend leaves alone.

    The median keeps real change points, which touch single differences, out of it.

    Source: von Neumann 1941 (successive differences); median of chi-square(1) is 0.4549.
    """
    mean = (counts[1:] + counts[:-1]) / 2
    used = mean > 0
    if not used.any():
        return 1.0
    ratios = np.square(np.diff(counts))[used] / (2 * mean[used])
    return max(1.0, float(np.median(ratios)) / 0.4549364231195724)


def change_points(positions: Floats, span: float, confidence: float = 0.999) -> tuple[Stretch, ...]:
    """Return the stretches of constant rate that explain the events best; one stretch means one process.

    Optimal partition of the counts in up to 200 bins under the Poisson likelihood. A change must gain more than the
    chance maximum over all bins does, inflated by how much the counts vary from bin to bin (bursts).

    Source: Jackson et al. 2005 (optimal partitioning); McCullagh and Nelder 1989 (quasi-likelihood dispersion).
    """
    count = positions.size
    bins = int(min(BINS_MOST, max(2, count / EVENTS_PER_BIN)))
    edges = np.linspace(0, float(positive("span", span)), bins + 1)
    counts = np.histogram(positions, edges)[0].astype(np.float64)
    # Bonferroni over bins: a change adds one rate and one place.
    threshold = float(chi2_quantile(1 - (1 - confidence) / bins, 2)) / 2 * _dispersion(counts)
    total = np.concatenate(([0.0], np.cumsum(counts)))
    best = np.full(bins + 1, math.inf)
    best[0] = -threshold
    back = np.zeros(bins + 1, dtype=np.int64)
    for end in range(1, bins + 1):
        starts = np.arange(end)
        events = total[end] - total[starts]
        with np.errstate(divide="ignore", invalid="ignore"):
            fit = np.where(events > 0, -events * np.log(events / (end - starts)), 0.0)
        cost = best[starts] + fit + threshold
        back[end] = int(np.argmin(cost))
        best[end] = cost[back[end]]
    cuts = [bins]
    while cuts[-1] > 0:
        cuts.append(int(back[cuts[-1]]))
    cuts.reverse()
    stretches = []
    for begin, end in pairwise(cuts):
        events = int(total[end] - total[begin])
        length = float(edges[end] - edges[begin])
        stretches.append(
            Stretch(begin=float(edges[begin]), end=float(edges[end]), failures=events, rate=events / length)
        )
    return tuple(stretches)


class Homogeneity(msgspec.Struct, frozen=True, kw_only=True):
    """Whether groups (years, sites) share one rate. ``holds`` is false when chance does not explain the differences."""

    chi_square: float
    freedom: int
    p: float
    holds: bool


def same_rate(failures: Floats, exposures: Floats, confidence: float = 0.999) -> Homogeneity:
    """Return whether groups with these failures and exposures may share one rate. Both float64 [groups].

    Source: Cox and Lewis 1966, dispersion test against expected counts.
    """
    expected = failures.sum() * positive("exposures", exposures) / exposures.sum()
    statistic = float((np.square(failures - expected) / np.maximum(expected, 1e-300)).sum())
    freedom = failures.size - 1
    p = float(gamma_q(freedom / 2, statistic / 2)) if freedom else 1.0
    return Homogeneity(chi_square=statistic, freedom=freedom, p=p, holds=p >= 1 - confidence)
