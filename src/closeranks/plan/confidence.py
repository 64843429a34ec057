"""How sure a failure rate is: intervals that come from the user's own failure count."""

from __future__ import annotations

import math

import msgspec

from closeranks.plan.checks import PlanInputError, positive, whole
from closeranks.plan.special import chi2_quantile


class MtbfEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean time between failures with its confidence interval, in hours.

    ``mtbf_h`` and ``high_h`` are infinite after zero failures: data without a failure bound it from below only.
    """

    failures: int
    exposure_h: float
    confidence: float
    mtbf_h: float
    low_h: float
    high_h: float

    @property
    def failures_per_day(self) -> float:
        """The estimated rate."""
        return 24 / self.mtbf_h if math.isfinite(self.mtbf_h) else 0.0


def estimate_mtbf(failures: int, exposure_h: float, confidence: float = 0.95) -> MtbfEstimate:
    """Return the MTBF of a time-truncated record, with its exact interval for a Poisson process.

    Two-sided with failures; one-sided (from below, at the same confidence) without any.
    The interval assumes a constant rate: run the trend test of ``plan.trend`` first.

    Source: Epstein 1960; MIL-HDBK-338B, 2T/chi-square with 2n and 2n + 2 degrees of freedom.
    """
    whole("failures", failures)
    positive("exposure_h", exposure_h, "give the hours that were watched, failures or not")
    if not 0 < confidence < 1:
        raise PlanInputError("confidence", "a share strictly between 0 and 1", confidence, "0.95 is usual")
    tail = (1 - confidence) / 2
    if failures == 0:
        low_h = 2 * exposure_h / float(chi2_quantile(confidence, 2))
        mtbf_h = high_h = float("inf")
    else:
        mtbf_h = exposure_h / failures
        low_h = 2 * exposure_h / float(chi2_quantile(1 - tail, 2 * failures + 2))
        high_h = 2 * exposure_h / float(chi2_quantile(tail, 2 * failures))
    return MtbfEstimate(
        failures=failures, exposure_h=exposure_h, confidence=confidence, mtbf_h=mtbf_h, low_h=low_h, high_h=high_h
    )
