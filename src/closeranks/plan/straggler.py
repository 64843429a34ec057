"""What one slow rank costs a synchronous job, and when replacing it pays."""

from __future__ import annotations

import msgspec

from closeranks.plan.checks import PlanInputError, not_negative, positive


class StragglerCost(msgspec.Struct, frozen=True, kw_only=True):
    """The job at the pace of its slowest rank. ``idle_money_per_h`` is what the waiting ranks cost."""

    relative_speed: float
    idle_accelerators: float
    idle_money_per_h: float


def straggler_cost(
    accelerators: float, slow_speed: float, price_per_accelerator_h: float, slow_count: float = 1
) -> StragglerCost:
    """Return the cost of ``slow_count`` ranks at ``slow_speed`` (0.5 for half speed) while all wait for them.

    Source: barrier synchrony, job speed = slowest rank; MLSysBook, "straggler tax".
    """
    positive("accelerators", accelerators)
    if not 0 < slow_speed <= 1:
        raise PlanInputError("slow_speed", "a share in (0, 1]", slow_speed, "0.5 for a rank at half speed")
    waiting = accelerators - float(not_negative("slow_count", slow_count))
    idle = waiting * (1 - slow_speed)
    price = float(not_negative("price_per_accelerator_h", price_per_accelerator_h))
    return StragglerCost(relative_speed=slow_speed, idle_accelerators=idle, idle_money_per_h=idle * price)


def break_even_s(slow_speed: float, replacement_s: float) -> float:
    """Return how long the slow phase must still last for a replacement that stops the job to pay.

    Replacing loses ``replacement_s`` of the whole job; waiting loses ``1 - slow_speed`` of it for as long as the
    rank stays slow. Infinite for a rank at full speed.

    Source: own; L (1 - s) = c.
    """
    if not 0 < slow_speed <= 1:
        raise PlanInputError("slow_speed", "a share in (0, 1]", slow_speed, "0.5 for a rank at half speed")
    cost = float(not_negative("replacement_s", replacement_s))
    return cost / (1 - slow_speed) if slow_speed < 1 else float("inf")


def exclusion_break_even_speed(accelerators: float) -> float:
    """Return the speed below which going on without the rank beats waiting for it (same batch over N - 1 ranks).

    Source: own; (N - 1)/N = s, the restart not counted.
    """
    n = float(positive("accelerators", accelerators))
    return (n - 1) / n
