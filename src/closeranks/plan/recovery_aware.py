"""Saves in a job whose failures mostly recover warm, from a peer's memory: only cold recoveries read them. Seconds."""

from __future__ import annotations

import msgspec

from closeranks.plan.checks import PlanInputError, not_negative, positive, share
from closeranks.plan.interval import exact_s, waste


class Warm(msgspec.Struct, frozen=True, kw_only=True):
    """How failures recover: the ``handled`` share in ``restart_s``, losing ``lost_s`` of work whatever the interval."""

    handled: float
    restart_s: float
    lost_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible numbers by name."""
        share("handled", self.handled)
        not_negative("restart_s", self.restart_s)
        not_negative("lost_s", self.lost_s)


class RecoveryAwareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An interval for the cold share of failures, and the waste of warm and cold recoveries together."""

    interval_s: float
    waste: float
    cold_share: float


def plan_recovery_aware(write_s: float, mtbf_s: float, cold_restart_s: float, warm: Warm) -> RecoveryAwareAnswer:
    """Return the interval for saves that only cold recoveries will read.

    Saves are spaced for the cold rate alone; cold recoveries follow the exact wall time, warm ones add their time at
    their own rate.

    Source: own; Daly 2006 (complete wall-time model) at the thinned rate of cold failures (thinning of a
    Poisson process).
    """
    cold = 1 - warm.handled
    mtbf = float(positive("mtbf_s", mtbf_s))
    if cold <= 0:
        way_out = "keep some saves for the loss that has not been seen yet: give 0.99"
        raise PlanInputError("handled", "less than 1", warm.handled, way_out)
    interval_s = float(exact_s(write_s, mtbf / cold))
    kept = 1 - float(waste(interval_s, write_s, mtbf / cold, cold_restart_s))
    slowed = 1 + warm.handled * (warm.restart_s + warm.lost_s) / mtbf
    return RecoveryAwareAnswer(interval_s=interval_s, waste=1 - kept / slowed, cold_share=cold)
