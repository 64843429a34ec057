"""The few special functions that the planner needs, so that numpy is its only dependency.

Scalar kernels are plain ``math``; the public functions broadcast over arrays.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from closeranks.plan.checks import Floats, NotSolvableError, Real, plain
from closeranks.plan.elementwise import each, real

if TYPE_CHECKING:
    from collections.abc import Callable

_EPSILON = 1e-16
_TERMS_MAX = 100_000
_CONTINUED_FRACTION_START = 1e-300


def _gamma_lower(shape: float, x: float) -> tuple[float, float]:
    """Return (P, Q), both without cancellation: the small one is computed, the other is its complement."""
    if x <= 0:
        return 0.0, 1.0
    front = math.exp(min(shape * math.log(x) - x - math.lgamma(shape), 700.0))
    if x < shape + 1:
        term = total = 1.0 / shape
        for n in range(1, _TERMS_MAX):
            term *= x / (shape + n)
            total += term
            if term < total * _EPSILON:
                break
        lower = min(front * total, 1.0)
        return lower, 1 - lower
    b = x + 1 - shape
    c, d = 1 / _CONTINUED_FRACTION_START, 1 / b
    fraction = d
    for n in range(1, _TERMS_MAX):
        a = -n * (n - shape)
        b += 2
        d = a * d + b
        d = 1 / (d if abs(d) > _CONTINUED_FRACTION_START else _CONTINUED_FRACTION_START)
        c = b + a / c
        c = c if abs(c) > _CONTINUED_FRACTION_START else _CONTINUED_FRACTION_START
        fraction *= d * c
        if abs(d * c - 1) < 4 * _EPSILON:
            break
    upper = min(front * fraction, 1.0)
    return 1 - upper, upper


def gamma_p(shape: Real, x: Real) -> Real:
    """Return the regularised lower incomplete gamma function P(shape, x).

    Source: Abramowitz and Stegun 6.5.29 (series), Lentz's evaluation of 6.5.31 (continued fraction).
    """
    return plain(each(lambda a, z: _gamma_lower(a, z)[0], shape, x))


def gamma_q(shape: Real, x: Real) -> Real:
    """Return 1 - P(shape, x) without cancellation. Source: as ``gamma_p``."""
    return plain(each(lambda a, z: _gamma_lower(a, z)[1], shape, x))


def _chi2_quantile(probability: float, freedom: float) -> float:
    if probability <= 0:
        return 0.0
    if probability >= 1:
        return math.inf
    shape = freedom / 2

    def excess(x: float) -> float:
        lower, upper = _gamma_lower(shape, x / 2)
        return lower - probability if probability < 0.5 else (1 - probability) - upper  # noqa: PLR2004 - the bound is said beside it

    low, high = 0.0, max(freedom, 1.0)
    while excess(high) < 0:
        low, high = high, 2 * high
    x = 0.5 * (low + high)
    for _ in range(200):
        gap = excess(x)
        low, high = (x, high) if gap < 0 else (low, x)
        density = 0.5 * math.exp(min((shape - 1) * math.log(x / 2) - x / 2 - math.lgamma(shape), 700.0))
        step = x - gap / density if density > 0 else low
        following = step if low < step < high else 0.5 * (low + high)
        if abs(following - x) <= 1e-14 * following:
            return following
        x = following
    return x


def chi2_quantile(probability: Real, freedom: Real) -> Real:
    """Return the chi-square quantile by Newton's method, bracketed so that it cannot leave the root.

    Source: the inverse of ``gamma_p(freedom / 2, x / 2)``.
    """
    return plain(each(_chi2_quantile, probability, freedom))


def log_binomial_pmf(successes: Real, trials: Real, chance: Real) -> Real:
    """Return ln P(X = successes) of a binomial law; -inf where it is impossible.

    Source: binomial law with the coefficient by ln Gamma.
    """

    def one(k: float, n: float, p: float) -> float:
        if k < 0 or k > n:
            return -math.inf
        choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        tail = (0.0 if k == 0 else k * math.log(p) if p > 0 else -math.inf) + (
            0.0 if k == n else (n - k) * math.log1p(-p) if p < 1 else -math.inf
        )
        return choose + tail

    return plain(each(one, successes, trials, chance))


def poisson_tail(above: Real, mean: Real) -> Real:
    """Return P(X > above) for a Poisson count. Source: P(X > s) = P(s + 1, mean)."""
    return gamma_p(each(math.floor, above) + 1, mean)


def poisson_quantile(probability: float, mean: float) -> int:
    """Return the smallest s with P(X <= s) >= probability.

    Source: doubling, then bisection, on ``poisson_tail``.
    """
    if not 0 <= probability < 1:
        message = f"probability: expected a share below 1, got {probability:g}; no finite count is certain"
        raise NotSolvableError(message)
    s = 0
    step = 1
    while float(gamma_p(s + step + 1.0, mean)) > 1 - probability:
        step *= 2
    low, high = -1, s + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if float(gamma_p(middle + 1.0, mean)) <= 1 - probability else (middle, high)
    return high


def normal_cdf(z: Real) -> Real:
    """Return the standard normal distribution function, accurate in the lower tail. Source: 0.5 erfc(-z/sqrt 2)."""
    return plain(0.5 * each(math.erfc, -real(z) / math.sqrt(2)))


def golden_minimum(low: Real, high: Real, cost: Callable[[Floats], Real], rounds: int = 120) -> Floats:
    """Return where a unimodal ``cost`` is least between ``low`` and ``high``, elementwise.

    Source: Kiefer 1953, golden section; 120 rounds reach the float resolution of a flat minimum.
    """
    import numpy as np

    ratio = (math.sqrt(5) - 1) / 2
    a, b = np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    for _ in range(rounds):
        left = cost(c) < cost(d)
        a, b = np.where(left, a, c), np.where(left, d, b)
        c, d = b - ratio * (b - a), a + ratio * (b - a)
    return np.asarray(0.5 * (a + b), dtype=np.float64)
