"""How many spare nodes keep a promise, with repair times and losses that come in bursts; and capacity from spot."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from closeranks.plan.checks import Floats, PlanInputError, not_negative, positive, whole
from closeranks.plan.special import normal_cdf, poisson_quantile, poisson_tail


class SpareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The fewest spares under a promise.

    ``load`` is the mean number of nodes out; ``shortage`` the share of time in which more are out than spares exist.
    """

    spares: int
    load: float
    shortage: float


def load_of(nodes: float, failures_per_node_day: float, repair_days: float) -> float:
    """Return the mean number of nodes in repair. Source: Little 1961, rate times time."""
    rate = positive("nodes", nodes) * not_negative("failures_per_node_day", failures_per_node_day)
    return float(rate * not_negative("repair_days", repair_days))


def shortage(spares: int, load: float) -> float:
    """Return the share of time in which more than ``spares`` nodes are out, independent losses, any repair law.

    Source: Palm 1938: the number in repair is Poisson with mean ``load`` (M/G/infinity).
    """
    return float(poisson_tail(float(whole("spares", spares)), float(not_negative("load", load))))


def spares_needed(load: float, shortage_max: float) -> SpareAnswer:
    """Return the fewest spares with a shortage of at most ``shortage_max``.

    Source: ``shortage``.
    """
    if not 0 < shortage_max < 1:
        raise PlanInputError("shortage_max", "a share strictly between 0 and 1", shortage_max, "0.01 for 1 % of time")
    count = poisson_quantile(1 - shortage_max, float(not_negative("load", load)))
    return SpareAnswer(spares=count, load=load, shortage=shortage(count, load))


def burst_law(load: float, burst_share: float, burst_nodes: int, most: int) -> Floats:
    """Return the chance of 0, 1, ... ``most`` nodes being out when some events take several that return together.

    ``burst_share`` of the *events* take ``burst_nodes``; ``load`` is the mean number of nodes out, kept at that value.
    float64 [most + 1].

    Source: compound Poisson by the recursion of Panjer 1981; M/G/infinity with batches that share their repair.
    """
    positive("load", load)
    size = whole("burst_nodes", burst_nodes, 1)
    events = load / (1 - burst_share + burst_share * size)
    weights = np.zeros(size + 1)
    weights[1] += 1 - burst_share
    weights[size] += burst_share
    law = np.zeros(most + 1)
    law[0] = math.exp(-events)
    sizes = np.arange(1, size + 1)
    for out in range(1, most + 1):
        reach = sizes[: min(size, out)]
        law[out] = events / out * float((reach * weights[reach] * law[out - reach]).sum())
    return law


def spares_for_bursts(load: float, shortage_max: float, burst_share: float, burst_nodes: int) -> SpareAnswer:
    """Return the fewest spares when ``burst_share`` of events take ``burst_nodes`` nodes at once.

    Source: ``burst_law``.
    """
    if not 0 <= burst_share <= 1:
        raise PlanInputError("burst_share", "a share in [0, 1]", burst_share, "0.05 for 5 % of events")
    if not 0 < shortage_max < 1:
        raise PlanInputError("shortage_max", "a share strictly between 0 and 1", shortage_max, "0.01 for 1 % of time")
    most = int(load + 20 * math.sqrt(load * burst_nodes) + 20 * burst_nodes + 20)
    tail = 1 - np.cumsum(burst_law(load, burst_share, burst_nodes, most))
    count = int(np.argmax(tail <= shortage_max))
    return SpareAnswer(spares=count, load=load, shortage=float(max(tail[count], 0.0)))


def burst_shortage(spares: int, load: float, burst_share: float, burst_nodes: int) -> float:
    """Return the share of time in which more than ``spares`` nodes are out under bursts. Source: ``burst_law``."""
    return float(1 - burst_law(load, burst_share, burst_nodes, whole("spares", spares)).sum())


class SpotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity from reclaimable instances. ``request`` gives at least ``needed`` with chance ``promise``."""

    request: int
    availability: float
    promise: float
    price_per_h: float
    on_demand_price_per_h: float


def spot_capacity(  # noqa: PLR0913 - one argument for each quantity of the formula
    *,
    needed: int,
    reclaims_per_instance_h: float,
    refill_h: float,
    promise: float,
    spot_price_per_h: float,
    on_demand_price_per_h: float,
) -> SpotAnswer:
    """Return how many spot instances to ask for so that ``needed`` are there with chance ``promise``.

    Reclaims are taken as independent; a market that takes all at once needs a second market, not more instances.

    Source: ``plan.availability.k_of_n`` with availability 1/(1 + reclaim rate x refill time).
    """
    from closeranks.plan.availability import k_of_n  # noqa: PLC0415 - only this path needs it

    outage = float(
        not_negative("reclaims_per_instance_h", reclaims_per_instance_h) * not_negative("refill_h", refill_h)
    )
    each = 1 / (1 + outage)
    if not 0 < promise < 1:
        raise PlanInputError("promise", "a share strictly between 0 and 1", promise, "0.99 for 99 % of time")
    z_step = max(1, int(math.sqrt(needed * outage)))
    request = needed
    while float(k_of_n(needed, request + z_step, each)) < promise:
        request += z_step
    while float(k_of_n(needed, request, each)) < promise:
        request += 1
    return SpotAnswer(
        request=request,
        availability=each,
        promise=float(k_of_n(needed, request, each)),
        price_per_h=request * each * spot_price_per_h,
        on_demand_price_per_h=needed * on_demand_price_per_h,
    )


def normal_shortage(spares: int, load: float) -> float:
    """Return the textbook normal approximation of ``shortage``, which is too small at low loads.

    Source: central limit with continuity correction.
    """
    return float(normal_cdf(-(spares + 0.5 - load) / math.sqrt(float(positive("load", load)))))
