"""How many spare nodes keep a promise, with repair times and losses that come in bursts; and capacity from spot."""

from __future__ import annotations

import math

import msgspec

from closeranks.plan.checks import Floats, PlanInputError, not_negative, positive, share, whole
from closeranks.plan.special import normal_cdf, poisson_quantile, poisson_tail

_RESCALE = 1e200
_LOG_MOST = 700.0


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


def batch_law(event_loads: dict[int, float], most: int) -> Floats:
    """Return the chance of 0, 1, ... ``most`` nodes being out when events take several nodes that return together.

    ``event_loads[size]`` is the mean number of events of that size being repaired (their rate times their repair).
    float64 [most + 1].

    Source: compound Poisson by the recursion of Panjer 1981; M/G/infinity with batches that share their repair.
    """
    import numpy as np

    sizes = np.array(sorted(event_loads), dtype=np.int64)
    if sizes.size == 0 or sizes[0] < 1:
        way_out = "give the mean number of events of each size of 1 or more nodes"
        raise PlanInputError("event_loads", "sizes of at least one node", sizes.tolist(), way_out)
    loads = np.asarray(not_negative("event_loads", np.array([event_loads[size] for size in sizes.tolist()])))
    # In logarithms relative to the first: e^-load underflows long before its law does.
    law = np.zeros(most + 1)
    law[0] = 1.0
    log_scale = -float(loads.sum())
    for out in range(1, most + 1):
        reach = sizes <= out
        law[out] = float((sizes[reach] * loads[reach] * law[out - sizes[reach]]).sum()) / out
        if law[out] > _RESCALE:
            log_scale += math.log(law[out])
            law /= law[out]
    return np.asarray(law * math.exp(log_scale) if log_scale > -_LOG_MOST else law / law.sum(), dtype=np.float64)


def _most_out(event_loads: dict[int, float]) -> int:
    mean = sum(size * load for size, load in event_loads.items())
    spread = math.sqrt(sum(size * size * load for size, load in event_loads.items()))
    return int(mean + 12 * spread + 12 * max(event_loads) + 20)


def spares_for_batches(event_loads: dict[int, float], shortage_max: float) -> SpareAnswer:
    """Return the fewest spares when events of several sizes overlap; ``event_loads`` as for ``batch_law``.

    Source: ``batch_law``.
    """
    if not 0 < shortage_max < 1:
        raise PlanInputError("shortage_max", "a share strictly between 0 and 1", shortage_max, "0.01 for 1 % of time")
    import numpy as np

    law = batch_law(event_loads, _most_out(event_loads))
    tail = np.maximum(1 - np.cumsum(law), 0.0)
    count = int(np.argmax(tail <= shortage_max))
    load = sum(size * events for size, events in event_loads.items())
    return SpareAnswer(spares=count, load=load, shortage=float(tail[count]))


def burst_loads(load: float, burst_share: float, burst_nodes: int) -> dict[int, float]:
    """Return the event loads of a mean ``load`` of nodes out when ``burst_share`` of *events* take ``burst_nodes``.

    Source: own; mean batch size 1 - b + b k, the mean load is kept.
    """
    share("burst_share", burst_share)
    size = whole("burst_nodes", burst_nodes, 1)
    events = float(not_negative("load", load)) / (1 - burst_share + burst_share * size)
    loads = {1: events * (1 - burst_share)}
    loads[size] = loads.get(size, 0.0) * (size == 1) + events * burst_share
    return loads


def spares_for_bursts(load: float, shortage_max: float, burst_share: float, burst_nodes: int) -> SpareAnswer:
    """Return the fewest spares when ``burst_share`` of events take ``burst_nodes`` nodes at once.

    Source: ``batch_law``.
    """
    return spares_for_batches(burst_loads(load, burst_share, burst_nodes), shortage_max)


def burst_shortage(spares: int, load: float, burst_share: float, burst_nodes: int) -> float:
    """Return the share of time in which more than ``spares`` nodes are out under bursts. Source: ``batch_law``."""
    loads = burst_loads(load, burst_share, burst_nodes)
    law = batch_law(loads, max(_most_out(loads), whole("spares", spares)))
    return float(max(1 - law[: spares + 1].sum(), 0.0))


class SpotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity from reclaimable instances. ``request`` gives at least ``needed`` with chance ``promise``."""

    request: int
    availability: float
    promise: float
    price_per_h: float
    on_demand_price_per_h: float


def spot_capacity(
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
    from closeranks.plan.availability import k_of_n

    outage = float(
        not_negative("reclaims_per_instance_h", reclaims_per_instance_h) * not_negative("refill_h", refill_h)
    )
    each = 1 / (1 + outage)
    if not 0 < promise < 1:
        raise PlanInputError("promise", "a share strictly between 0 and 1", promise, "0.99 for 99 % of time")
    low = high = whole("needed", needed, 1)
    while float(k_of_n(needed, high, each)) < promise:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if float(k_of_n(needed, middle, each)) >= promise else (middle, high)
    request = high
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
