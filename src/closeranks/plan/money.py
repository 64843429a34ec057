"""What failures and their prevention cost, and where more prevention stops paying."""

from __future__ import annotations

import msgspec

from closeranks.plan.checks import PlanInputError, not_negative, positive, share

HOURS_PER_DAY = 24.0
SECONDS_PER_HOUR = 3600.0


def failure_cost(accelerators: float, lost_s: float, price_per_accelerator_h: float) -> float:
    """Return the money that one failure costs: everybody's time until the job is where it was.

    ``lost_s`` is rework plus recovery. Source: counting, N t price.
    """
    hours = float(positive("accelerators", accelerators) * not_negative("lost_s", lost_s)) / SECONDS_PER_HOUR
    return hours * float(not_negative("price_per_accelerator_h", price_per_accelerator_h))


def waste_per_day(accelerators: float, waste: float, price_per_accelerator_h: float) -> float:
    """Return the money a day that a share of wasted time costs. Source: counting, 24 N price waste."""
    price = float(not_negative("price_per_accelerator_h", price_per_accelerator_h))
    return float(HOURS_PER_DAY * positive("accelerators", accelerators) * share("waste", waste) * price)


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """Where prevention stops paying: the best level, and the money a day there."""

    level: float
    prevention_per_day: float
    failures_per_day: float
    total_per_day: float


def prevention_margin(
    levels: tuple[float, ...], prevention_per_day: tuple[float, ...], loss_per_day: tuple[float, ...]
) -> Margin:
    """Return the level with the least total of prevention and remaining loss, in money a day.

    Past it the next unit of prevention costs more than it saves.

    Source: marginal cost equals marginal benefit; the minimum of the sum over the given levels.
    """
    if not levels or not len(levels) == len(prevention_per_day) == len(loss_per_day):
        counts = f"{len(levels)}, {len(prevention_per_day)}, {len(loss_per_day)}"
        raise PlanInputError("levels", "one cost and one loss for each level", counts, "give three equal lists")
    rows = zip(levels, prevention_per_day, loss_per_day, strict=True)
    level, prevention, loss = min(rows, key=lambda row: row[1] + row[2])
    return Margin(level=level, prevention_per_day=prevention, failures_per_day=loss, total_per_day=prevention + loss)
