"""How much of the time something works: repair, k of n, crews, replicas, and the correlated part of it all."""

from __future__ import annotations

import numpy as np

from closeranks.plan.checks import Floats, PlanInputError, Real, not_negative, plain, positive, share, whole
from closeranks.plan.special import log_binomial_pmf

HOURS_PER_YEAR = 8760.0


def steady_state(mtbf_h: Real, repair_h: Real) -> Real:
    """Return the long-run share of time in which a repairable part works.

    ``mtbf_h`` is working time between failures (so MTTF in a strict reading). Any laws with these means.

    Source: renewal-reward theorem, M / (M + R); Barlow and Proschan 1965.
    """
    mtbf = positive("mtbf_h", mtbf_h)
    return plain(mtbf / (mtbf + not_negative("repair_h", repair_h)))


def downtime_h_per_year(availability: Real) -> Real:
    """Return the hours out of 8,760 in which it does not work. Source: definition."""
    return plain((1 - share("availability", availability)) * HOURS_PER_YEAR)


def k_of_n(needed: int, units: int, each: Real) -> Real:
    """Return the chance that at least ``needed`` of ``units`` independent parts work, each with chance ``each``.

    Source: binomial tail; summed over the failing side so that the result keeps its digits near one.
    """
    whole("needed", needed, 0)
    whole("units", units, 0)
    chance = np.atleast_1d(share("each", each))
    if needed > units:
        return plain(np.zeros(np.shape(each)))
    short = np.arange(0, needed, dtype=np.float64)  # too few work
    log_terms = np.asarray(log_binomial_pmf(short[:, None], float(units), chance[None, :]))
    result = 1 - np.exp(log_terms).sum(axis=0) if needed else np.ones_like(chance)
    enough = np.arange(needed, units + 1, dtype=np.float64)
    direct = np.exp(np.asarray(log_binomial_pmf(enough[:, None], float(units), chance[None, :]))).sum(axis=0)
    best = np.where(direct < 0.5, direct, result)  # noqa: PLR2004 - the bound is said beside it
    return plain(np.clip(best, 0, 1).reshape(np.shape(each)))


def machine_repair_law(
    *, units: int, needed: int, mtbf_h: float, repair_h: float, crews: int, cold: bool = False
) -> Floats:
    """Return the long-run chance of 0, 1, ... ``units`` parts being down, float64 [units + 1].

    ``crews`` repairs go on at once. Hot parts fail whether used or not; ``cold`` spares fail only while needed.
    Times are exponential; with unlimited crews and hot parts the law holds for any repair distribution.

    Source: Kleinrock 1975 (machine repairman), birth-death balance in logarithms.
    """
    whole("units", units, 1)
    whole("crews", crews, 1)
    if not 1 <= needed <= units:
        raise PlanInputError("needed", f"1 to units ({units})", needed, "a system cannot need more than it has")
    fail_per_h, fix_per_h = 1 / float(positive("mtbf_h", mtbf_h)), 1 / float(positive("repair_h", repair_h))
    down = np.arange(units, dtype=np.float64)
    exposed = units - down if not cold else np.minimum(units - down, needed)
    up_rate, down_rate = exposed * fail_per_h, np.minimum(down + 1, crews) * fix_per_h
    log_weight = np.concatenate(([0.0], np.cumsum(np.log(up_rate) - np.log(down_rate))))
    weight = np.exp(log_weight - log_weight.max())
    return np.asarray(weight / weight.sum(), dtype=np.float64)


def k_of_n_with_crews(
    *, units: int, needed: int, mtbf_h: float, repair_h: float, crews: int, cold: bool = False
) -> float:
    """Return the long-run chance that at least ``needed`` of ``units`` work under ``crews`` repair crews.

    Source: ``machine_repair_law``.
    """
    law = machine_repair_law(units=units, needed=needed, mtbf_h=mtbf_h, repair_h=repair_h, crews=crews, cold=cold)
    return float(law[: units - needed + 1].sum())


def shards(data: int, parity: int, each: Real) -> Real:
    """Return the chance that erasure-coded data can be read: any ``data`` of ``data + parity`` shards are there.

    Source: maximum-distance-separable codes, Reed and Solomon 1960; ``k_of_n``.
    """
    return k_of_n(whole("data", data, 1), data + whole("parity", parity), each)


def replicas(each: Real, count: int, shared: Real = 0.0) -> Real:
    """Return the availability of ``count`` replicas of which one suffices.

    ``shared`` is the share of a replica's unavailability whose cause hits all replicas at once (a beta factor:
    one power feed, one software version, one bad configuration). Independence is ``shared = 0``; the part that
    it hides is a floor of ``shared * (1 - each)`` that no further replica can lower.

    Source: Fleming 1975, beta-factor model; NUREG/CR-4780.
    """
    out = 1 - share("each", each)
    beta = share("shared", shared)
    common = beta * out
    own = np.where(common < 1, (out - common) / np.maximum(1 - common, 1e-300), 0.0)
    return plain(1 - (common + (1 - common) * own ** whole("count", count, 1)))


def replicas_needed(each: float, goal: float, shared: float = 0.0, most: int = 64) -> int:
    """Return the fewest replicas whose availability reaches ``goal``.

    Raises:
        PlanInputError: the shared causes alone miss the goal, so no number of replicas can reach it.

    Source: ``replicas``.

    """
    share("goal", goal)
    for count in range(1, most + 1):
        if float(replicas(each, count, shared)) >= goal:
            return count
    floor = 1 - shared * (1 - each)
    expected = f"at most {floor:.9g}, where causes shared by all replicas leave it"
    raise PlanInputError("goal", expected, goal, "remove what the replicas share, or lower the goal")
