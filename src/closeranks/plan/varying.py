"""Writes and restarts that take another time at each attempt. Seconds."""

from __future__ import annotations

import numpy as np

from closeranks.plan.checks import Floats, PlanInputError, not_negative, positive


def equivalent_s(samples_s: Floats, mtbf_s: float) -> float:
    """Return the fixed time that costs as much as one drawn anew from ``samples_s`` at each attempt.

    Exact for exponential failures: put it for ``write_s`` (or ``restart_s``) in any formula of ``plan.interval``.
    It is below the mean, because a long write that is cut is drawn anew: -M ln E[e^(-d/M)].
    ``samples_s``: float64 [samples], equally likely.

    Source: own; renewal argument of Daly 2006 (complete wall-time model), with the attempt's success chance
    E[e^(-(t + d)/M)].
    """
    samples = np.atleast_1d(not_negative("samples_s", samples_s))
    mtbf = float(positive("mtbf_s", mtbf_s))
    return float(-mtbf * np.log1p(np.expm1(-samples / mtbf).mean()))


def spread_samples(typical_s: float, slowest_fold: float, count: int = 201) -> Floats:
    """Return times spread evenly from ``typical_s`` to ``slowest_fold`` times it, float64 [count].

    Writes into a shared store vary 2 to 3 fold; restarts take 3 to 5 times a write.

    Source: midpoints of a uniform law, so that the mean is exact.
    """
    if slowest_fold < 1:
        raise PlanInputError("slowest_fold", "at least 1", slowest_fold, "1 means that it does not vary")
    middle = (np.arange(count) + 0.5) / count
    return np.asarray(positive("typical_s", typical_s) * (1 + (slowest_fold - 1) * middle), dtype=np.float64)
