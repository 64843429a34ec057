"""What a recovery costs, phase by phase; cold against warm; and what stopping everybody costs."""

from __future__ import annotations

import msgspec

from closeranks.plan.checks import PlanInputError, not_negative, positive

SECONDS_PER_DAY = 86_400.0
SECONDS_PER_HOUR = 3600.0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The phases between a failure and normal speed, in seconds."""

    detect_s: float = 0.0
    restart_s: float = 0.0
    load_s: float = 0.0
    warm_up_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse negative phases by name."""
        for name in self.__struct_fields__:
            not_negative(name, getattr(self, name))

    @property
    def total_s(self) -> float:
        """From the failure to normal speed."""
        return self.detect_s + self.restart_s + self.load_s + self.warm_up_s

    @property
    def longest(self) -> tuple[str, float]:
        """The phase that dominates and its seconds: where shortening pays first."""
        return max(((name, getattr(self, name)) for name in self.__struct_fields__), key=lambda phase: phase[1])


class DailyCost(msgspec.Struct, frozen=True, kw_only=True):
    """What recoveries take from a cluster each day, lost work not included."""

    recovery_s: float
    share: float
    accelerator_h: float


def load_s(state_bytes: float, bytes_per_s: float) -> float:
    """Return the seconds to read ``state_bytes`` back. Source: size over bandwidth."""
    return float(not_negative("state_bytes", state_bytes) / positive("bytes_per_s", bytes_per_s))


def daily_cost(recovery_s: float, failures_per_day: float, accelerators: float) -> DailyCost:
    """Return the daily time and accelerator-hours spent in recoveries.

    Source: counting; MLSysBook, "recovery time budget".
    """
    lost_s = float(not_negative("recovery_s", recovery_s) * not_negative("failures_per_day", failures_per_day))
    if lost_s > SECONDS_PER_DAY:
        way_out = "failures arrive faster than recovery ends: shorten recovery or the job never trains"
        raise PlanInputError("recovery_s x failures_per_day", "at most a day", f"{lost_s:g} s", way_out)
    hours = lost_s / SECONDS_PER_HOUR * float(positive("accelerators", accelerators))
    return DailyCost(recovery_s=lost_s, share=lost_s / SECONDS_PER_DAY, accelerator_h=hours)


class ColdWarm(msgspec.Struct, frozen=True, kw_only=True):
    """A full restart beside a recovery that keeps the survivors' processes and state."""

    cold: DailyCost
    warm: DailyCost
    mixed: DailyCost
    saved_accelerator_h: float


def cold_against_warm(
    cold_s: float, warm_s: float, warm_share: float, failures_per_day: float, accelerators: float
) -> ColdWarm:
    """Return the daily cost of all-cold, all-warm and of ``warm_share`` of failures recovering warm.

    ``cold_s`` and ``warm_s`` should include the work that each loses.

    Source: counting, ``daily_cost``.
    """
    if not 0 <= warm_share <= 1:
        raise PlanInputError("warm_share", "a share in [0, 1]", warm_share, "0.8 for 80 % of failures")
    cold = daily_cost(cold_s, failures_per_day, accelerators)
    warm = daily_cost(warm_s, failures_per_day, accelerators)
    mixed = daily_cost(warm_share * warm_s + (1 - warm_share) * cold_s, failures_per_day, accelerators)
    return ColdWarm(cold=cold, warm=warm, mixed=mixed, saved_accelerator_h=cold.accelerator_h - mixed.accelerator_h)


class StopCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a pause of the whole job costs: each time and a day."""

    accelerator_h_each: float
    money_each: float
    money_per_day: float


def stop_the_world(accelerators: float, pause_s: float, every_s: float, price_per_accelerator_h: float) -> StopCost:
    """Return the cost of stopping every accelerator for ``pause_s`` once each ``every_s``.

    Source: counting, N t price.
    """
    hours = float(positive("accelerators", accelerators) * not_negative("pause_s", pause_s)) / SECONDS_PER_HOUR
    money = hours * float(not_negative("price_per_accelerator_h", price_per_accelerator_h))
    per_day = SECONDS_PER_DAY / float(positive("every_s", every_s))
    return StopCost(accelerator_h_each=hours, money_each=money, money_per_day=money * per_day)
