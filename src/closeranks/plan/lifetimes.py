"""Laws fitted to times between failures and to repairs: exponential, Weibull, lognormal, with censoring and AIC."""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from closeranks.plan.checks import Floats, PlanInputError, positive
from closeranks.plan.special import normal_cdf

Flags: TypeAlias = NDArray[np.bool_]

_CHI2_95 = 3.841458820694124
_EM_ROUNDS = 2_000


class LifeLaw(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted law. Parameters by name, in the hours of the data; ``aic`` is 2k - 2 ln L, smaller is better.

    ``shape_low`` and ``shape_high`` are the 95 % profile-likelihood interval of a Weibull shape, else NaN.
    """

    name: str
    parameters: dict[str, float]
    mean_h: float
    median_h: float
    log_likelihood: float
    aic: float
    shape_low: float = math.nan
    shape_high: float = math.nan


def _split(times_h: Floats, observed: Flags | None) -> tuple[Floats, Flags]:
    times = np.asarray(positive("times_h", times_h, "drop zero gaps first: simultaneous failures are one event"))
    seen = np.ones(times.shape, dtype=bool) if observed is None else np.asarray(observed, dtype=bool)
    if seen.sum() < 2:  # noqa: PLR2004 - a law needs a spread
        way_out = "collect more failures; an MTBF with its interval needs none"
        raise PlanInputError("times_h", "at least two observed failures", int(seen.sum()), way_out)
    return times, seen


def fit_exponential(times_h: Floats, observed: Flags | None = None) -> LifeLaw:
    """Return the exponential law by maximum likelihood. ``observed`` is false where a life was censored.

    Source: Lawless 2003: mean = total time / failures.
    """
    times, seen = _split(times_h, observed)
    mean_h = float(times.sum() / seen.sum())
    likelihood = float(-seen.sum() * (math.log(mean_h) + 1))
    return LifeLaw(
        name="exponential",
        parameters={"mean_h": mean_h},
        mean_h=mean_h,
        median_h=mean_h * math.log(2),
        log_likelihood=likelihood,
        aic=2 - 2 * likelihood,
    )


def _weibull_profile(log_times: Floats, seen: Flags, shape: float) -> tuple[float, float]:
    """Return (log-likelihood of unit-scale times at this shape, its best scale)."""
    failures = float(seen.sum())
    top = shape * float(log_times.max())
    log_mean = top + math.log(float(np.exp(shape * log_times - top).sum()) / failures)  # ln(scale^shape)
    likelihood = failures * (math.log(shape) - log_mean - 1) + (shape - 1) * float(log_times[seen].sum())
    return likelihood, math.exp(log_mean / shape)


def _weibull_score(log_times: Floats, seen: Flags, shape: float) -> float:
    weight = np.exp(shape * (log_times - log_times.max()))
    return 1 / shape + float(log_times[seen].mean() - (weight * log_times).sum() / weight.sum())


def fit_weibull(times_h: Floats, observed: Flags | None = None) -> LifeLaw:
    """Return the Weibull law by maximum likelihood, with the profile interval of its shape.

    A shape below 1 means that failures bunch (or that units of different quality are mixed), above 1 wear-out.

    Source: Lawless 2003 (profile score, bisected; profile-likelihood interval).
    """
    times, seen = _split(times_h, observed)
    log_times = np.log(times)
    if np.ptp(log_times[seen]) == 0:
        raise PlanInputError("times_h", "times that differ", "all equal", "a clockwork has no Weibull shape")
    low, high = 1e-3, 1.0
    while _weibull_score(log_times, seen, high) > 0:
        high *= 2
    for _ in range(100):
        shape = math.sqrt(low * high)
        low, high = (shape, high) if _weibull_score(log_times, seen, shape) > 0 else (low, shape)
    best, scale_h = _weibull_profile(log_times, seen, shape)

    def edge(outer: float) -> float:
        inner = shape
        for _ in range(60):
            middle = math.sqrt(inner * outer)
            inside = _weibull_profile(log_times, seen, middle)[0] > best - _CHI2_95 / 2
            inner, outer = (middle, outer) if inside else (inner, middle)
        return inner

    return LifeLaw(
        name="weibull",
        parameters={"shape": shape, "scale_h": scale_h},
        mean_h=scale_h * math.gamma(1 + 1 / shape) if shape > 0.01 else math.inf,  # noqa: PLR2004 - gamma overflows
        median_h=scale_h * math.log(2) ** (1 / shape),
        log_likelihood=best,
        aic=4 - 2 * best,
        shape_low=edge(shape / 50),
        shape_high=edge(shape * 50),
    )


def fit_lognormal(times_h: Floats, observed: Flags | None = None) -> LifeLaw:
    """Return the lognormal law by maximum likelihood; censored lives by expectation and maximisation.

    Source: Lawless 2003; Dempster, Laird and Rubin 1977 with the moments of a truncated normal.
    """
    times, seen = _split(times_h, observed)
    x = np.log(times)
    mu, sigma = float(x[seen].mean()), float(max(x[seen].std(), 1e-12))
    censored = x[~seen]
    for _ in range(_EM_ROUNDS if censored.size else 0):
        z = (censored - mu) / sigma
        mills = _hazard(z)
        first = mu + sigma * mills
        second = mu * mu + sigma * sigma + sigma * (censored + mu) * mills
        mean = float((x[seen].sum() + first.sum()) / x.size)
        spread = float((np.square(x[seen]).sum() + second.sum()) / x.size) - mean * mean
        moved = abs(mean - mu) + abs(math.sqrt(spread) - sigma)
        mu, sigma = mean, math.sqrt(spread)
        if moved < 1e-8:  # noqa: PLR2004 - far below any standard error
            break
    z = (x - mu) / sigma
    density = -0.5 * np.square(z[seen]) - math.log(sigma) - 0.5 * math.log(2 * math.pi) - x[seen]
    alive = np.log(np.maximum(np.asarray(normal_cdf(-z[~seen])), 1e-300)) if censored.size else np.zeros(1)
    likelihood = float(density.sum() + alive.sum())
    return LifeLaw(
        name="lognormal",
        parameters={"mu_ln_h": mu, "sigma": sigma},
        mean_h=math.exp(min(mu + sigma * sigma / 2, 700)),
        median_h=math.exp(mu),
        log_likelihood=likelihood,
        aic=4 - 2 * likelihood,
    )


def _hazard(z: Floats) -> Floats:
    """Return phi(z)/Q(z), by its asymptotic series where Q underflows. Source: Abramowitz and Stegun 26.2.12."""
    far = 30.0
    near = np.minimum(z, far)
    ratio = np.exp(-0.5 * near * near) / math.sqrt(2 * math.pi) / np.asarray(normal_cdf(-near))
    return np.where(z < far, ratio, z + 1 / np.maximum(z, 1.0))


def fit_all(times_h: Floats, observed: Flags | None = None) -> tuple[LifeLaw, ...]:
    """Return the three laws, the smallest AIC first.

    Source: Akaike 1974.
    """
    laws = (fit_exponential(times_h, observed), fit_weibull(times_h, observed), fit_lognormal(times_h, observed))
    return tuple(sorted(laws, key=lambda law: law.aic))


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """Repair times in hours. Median and mean differ several-fold: quote both, plan spares by the mean."""

    count: int
    median_h: float
    mean_h: float
    p90_h: float
    mu_ln_h: float
    sigma: float


def summarise_repairs(repairs_h: Floats) -> Repairs | None:
    """Return the summary of repair times, or None when none was written down. Zero repairs are left out of the law.

    Source: Schroeder and Gibson 2006 (repairs are lognormal).
    """
    if repairs_h.size == 0:
        return None
    logs = np.log(repairs_h[repairs_h > 0])
    mu, sigma = (float(logs.mean()), float(logs.std())) if logs.size else (-math.inf, 0.0)
    median_h, p90_h = np.quantile(repairs_h, [0.5, 0.9])
    return Repairs(
        count=int(repairs_h.size),
        median_h=float(median_h),
        mean_h=float(repairs_h.mean()),
        p90_h=float(p90_h),
        mu_ln_h=mu,
        sigma=sigma,
    )
