"""Silent data corruption: how exposed a job is, and how far back a clean save must be kept."""

from __future__ import annotations

import math

import msgspec

from closeranks.plan.checks import Real, not_negative, plain, positive
from closeranks.plan.elementwise import expm1

SECONDS_PER_HOUR = 3600.0


def corruptions_expected(accelerators: Real, per_accelerator_h: Real, hours: Real) -> Real:
    """Return the mean number of silent corruptions. Source: N r t of a Poisson process."""
    rate = positive("accelerators", accelerators) * not_negative("per_accelerator_h", per_accelerator_h)
    return plain(rate * not_negative("hours", hours))


def chance_of_any(accelerators: Real, per_accelerator_h: Real, hours: Real) -> Real:
    """Return the chance of at least one silent corruption. Source: 1 - e^(-N r t), Poisson."""
    return plain(-expm1(-corruptions_expected(accelerators, per_accelerator_h, hours)))


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """How often the job computes something wrong without noticing."""

    chance_per_step: float
    chance_per_day: float
    interval_steps: float
    interval_h: float


def exposure(accelerators: float, per_accelerator_h: float, step_s: float) -> Exposure:
    """Return the exposure per step and day and the expected interval between corruptions.

    Source: Poisson; rates from Dixit et al. 2021 and Hochschild et al. 2021 are per core or per device.
    """
    rate_h = float(positive("accelerators", accelerators) * positive("per_accelerator_h", per_accelerator_h))
    step_h = float(positive("step_s", step_s)) / SECONDS_PER_HOUR
    return Exposure(
        chance_per_step=-math.expm1(-rate_h * step_h),
        chance_per_day=-math.expm1(-rate_h * 24),
        interval_steps=1 / (rate_h * step_h),
        interval_h=1 / rate_h,
    )


def checkpoints_to_keep(detection_delay_s: float, interval_s: float) -> int:
    """Return how many checkpoints to keep so that one is older than any corruption that is still undetected.

    Source: Lu, Zheng and Chien 2013, multiversioning: ceil(delay / interval) + 1.
    """
    delay = float(not_negative("detection_delay_s", detection_delay_s))
    return math.ceil(delay / float(positive("interval_s", interval_s))) + 1


class SdcCost(msgspec.Struct, frozen=True, kw_only=True):
    """What silent corruption costs a day when it is caught after ``detection_delay``, in accelerator-hours."""

    caught_per_day: float
    rework_accelerator_h_per_day: float
    check_accelerator_h_per_day: float


def daily_cost(
    accelerators: float, per_accelerator_h: float, detection_delay_s: float, interval_s: float, check_share: float
) -> SdcCost:
    """Return the daily cost of rolling back past corruptions, beside that of the checks that find them.

    Each corruption loses the delay and, on average, half an interval before it.

    Source: own, counting; Aupy et al. 2013 for the half interval.
    """
    per_day = float(corruptions_expected(accelerators, per_accelerator_h, 24.0))
    lost_s = float(not_negative("detection_delay_s", detection_delay_s) + positive("interval_s", interval_s) / 2)
    return SdcCost(
        caught_per_day=per_day,
        rework_accelerator_h_per_day=per_day * lost_s / SECONDS_PER_HOUR * accelerators,
        check_accelerator_h_per_day=24 * accelerators * float(not_negative("check_share", check_share)),
    )
