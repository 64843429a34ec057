"""How often to save when training stops for the write: Young, Daly, the exact optimum, and what each costs.

All times are seconds. ``mtbf_s`` is the job's; ``write_s`` the pause for one save; an interval is the compute
between two saves and excludes the write. A restart (``restart_s``) can itself be cut by a failure and is repeated;
downtime (``downtime_s``) cannot. Failures are exponential.
"""

from __future__ import annotations

from closeranks.plan.checks import PlanInputError, Real, not_negative, plain, positive, share
from closeranks.plan.elementwise import (
    every,
    exp,
    expm1,
    log1p,
    maximum,
    minimum,
    quotient,
    rounded,
    some,
    sqrt,
    where,
)

_SMALL_U = 0.05
_NEWTON_ROUNDS = 60


def young_s(write_s: Real, mtbf_s: Real) -> Real:
    """Return Young's interval sqrt(2 d M): right when the write is far shorter than the MTBF.

    Source: Young 1974 (first-order optimum).
    """
    return plain(sqrt(2 * not_negative("write_s", write_s) * positive("mtbf_s", mtbf_s)))


def daly_first_order_s(write_s: Real, mtbf_s: Real, restart_s: Real = 0.0) -> Real:
    """Return Daly's first-order interval sqrt(2 d (M + R)) - d, never below zero.

    The restart in it is an artefact of the order: in the exact optimum it drops out.

    Source: Daly 2003; Daly 2006 (first-order model).
    """
    write = not_negative("write_s", write_s)
    reach = positive("mtbf_s", mtbf_s) + not_negative("restart_s", restart_s)
    return plain(maximum(sqrt(2 * write * reach) - write, 0.0))


def daly_higher_order_s(write_s: Real, mtbf_s: Real) -> Real:
    """Return Daly's perturbation solution; M where the write takes 2 M or longer.

    Source: Daly 2006, eq. 37.
    """
    write, mtbf = not_negative("write_s", write_s), positive("mtbf_s", mtbf_s)
    half = write / (2 * mtbf)
    series = sqrt(2 * write * mtbf) * (1 + sqrt(half) / 3 + half / 9) - write
    return plain(where(write < 2 * mtbf, series, mtbf))


def _gap(u: Real) -> Real:
    """Return u + e^-u - 1 without cancellation: 12 terms of the series below 0.05, expm1 above."""
    small = minimum(u, _SMALL_U)
    total: Real = 0.0
    term = small * small / 2
    for k in range(3, 15):
        total = total + term
        term = -term * small / k
    return where(u < _SMALL_U, total, u + expm1(-u))


def exact_root(write_over_mtbf: Real) -> tuple[Real, Real]:
    """Return (x, 1 - x) with x + ln(1 - x) + d/M = 0, to float precision for d/M from 1e-300 to 1e300.

    Newton's iteration in u = -log1p(-x), where the equation reads u + e^-u - 1 = d/M: convex, increasing, and
    started right of the root, so that it converges monotonically. No Lambert W: near its branch point that
    function loses half of the digits (x = 1 + W(-e^(-1 - d/M)) is off by 2.5e-5 at d/M = 1e-12).

    Source: Daly 2006 (complete wall-time model) with its derivative set to zero.
    """
    ratio = not_negative("write_s / mtbf_s", write_over_mtbf)
    u = ratio + sqrt(2 * ratio)  # u + e^-u - 1 >= u^2/(2 + u) there is at least the ratio
    for _ in range(_NEWTON_ROUNDS):
        slope = -expm1(-u)
        following = where(slope > 0, u - (_gap(u) - ratio) / where(slope > 0, slope, 1.0), 0.0)
        if every(following >= u):  # it fell at each round until rounding took over
            break
        u = minimum(u, following)
    return -expm1(-u), exp(-u)


def exact_s(write_s: Real, mtbf_s: Real) -> Real:
    """Return the interval that minimises the expected wall time; restart and downtime do not move it.

    Source: minimum of Daly 2006 (complete wall-time model); see ``exact_root``.
    """
    mtbf = positive("mtbf_s", mtbf_s)
    x, _ = exact_root(not_negative("write_s", write_s) / mtbf)
    return plain(mtbf * x)


def best_efficiency(write_s: Real, mtbf_s: Real, restart_s: Real = 0.0, downtime_s: Real = 0.0) -> Real:
    """Return the share of wall time that is kept compute when saving at ``exact_s``.

    Source: (1 - x) e^(-R/M) M/(M + D), Daly 2006 (complete wall-time model) at its minimum.
    """
    mtbf = positive("mtbf_s", mtbf_s)
    _, rest = exact_root(not_negative("write_s", write_s) / mtbf)
    restart, downtime = not_negative("restart_s", restart_s), not_negative("downtime_s", downtime_s)
    return plain(rest * exp(-restart / mtbf) * mtbf / (mtbf + downtime))


def efficiency(interval_s: Real, write_s: Real, mtbf_s: Real, restart_s: Real = 0.0, downtime_s: Real = 0.0) -> Real:
    """Return work over expected wall time at a given interval, 0 where the job would never finish.

    Source: inverse of ``wall_time_s``.
    """
    interval, mtbf = positive("interval_s", interval_s), positive("mtbf_s", mtbf_s)
    restart, downtime = not_negative("restart_s", restart_s), not_negative("downtime_s", downtime_s)
    segment = expm1((interval + not_negative("write_s", write_s)) / mtbf)
    return plain(interval / ((mtbf + downtime) * exp(restart / mtbf) * segment))


def wall_time_s(
    work_s: Real, interval_s: Real, write_s: Real, mtbf_s: Real, restart_s: Real = 0.0, downtime_s: Real = 0.0
) -> Real:
    """Return the expected wall time of ``work_s`` seconds of compute, in the limit of many intervals.

    Source: Daly 2006 (complete wall-time model), with downtime D added to what a failure costs:
    (M + D) e^(R/M) (e^((t + d)/M) - 1) work/t.
    """
    kept = efficiency(interval_s, write_s, mtbf_s, restart_s, downtime_s)
    return plain(quotient(not_negative("work_s", work_s), kept))


def waste(interval_s: Real, write_s: Real, mtbf_s: Real, restart_s: Real = 0.0, downtime_s: Real = 0.0) -> Real:
    """Return the exact share of wall time that is not kept compute. Source: 1 - ``efficiency``."""
    return plain(1 - efficiency(interval_s, write_s, mtbf_s, restart_s, downtime_s))


def waste_first_order(
    interval_s: Real, write_s: Real, mtbf_s: Real, restart_s: Real = 0.0, downtime_s: Real = 0.0
) -> Real:
    """Return the textbook waste d/t + (t/2 + R + D)/M, which can exceed one: compare with ``waste``.

    Source: Young 1974; MLSysBook, "checkpoint economics".
    """
    interval, mtbf = positive("interval_s", interval_s), positive("mtbf_s", mtbf_s)
    lost = interval / 2 + not_negative("restart_s", restart_s) + not_negative("downtime_s", downtime_s)
    return plain(not_negative("write_s", write_s) / interval + lost / mtbf)


def waste_product(interval_s: Real, write_s: Real, mtbf_s: Real, restart_s: Real = 0.0, downtime_s: Real = 0.0) -> Real:
    """Return the waste in product form, with the period T = t + d.

    Source: Herault and Robert 2015 (product form): 1 - (1 - d/T)(1 - (D + R + T/2)/M).
    """
    write = not_negative("write_s", write_s)
    period = positive("interval_s", interval_s) + write
    lost = not_negative("downtime_s", downtime_s) + not_negative("restart_s", restart_s) + period / 2
    return plain(1 - (1 - write / period) * (1 - lost / positive("mtbf_s", mtbf_s)))


def units_expected(work_units: Real, interval_units: Real, fault_chance: Real) -> Real:
    """Return the expected time units of a job in discrete time, where a fault costs its unit and all since a save.

    ``work_units`` must be a multiple of ``interval_units``; saving is free. Without saves the interval is the job.

    Source: expected trials until a run of n successes, (q^-n - 1)/(1 - q) (Feller 1968, success runs).
    """
    chance, interval = share("fault_chance", fault_chance), positive("interval_units", interval_units)
    rounds = positive("work_units", work_units) / interval
    if some(rounds != rounded(rounds)):
        way_out = "round the work up to whole intervals"
        raise PlanInputError("work_units", "a multiple of interval_units", work_units, way_out)
    safe = where(chance > 0, chance, 1.0)
    per_round = where(chance > 0, expm1(-interval * log1p(-safe)) / safe, interval)
    return plain(rounds * per_round)
