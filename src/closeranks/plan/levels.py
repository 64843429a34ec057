"""Saving on several storage levels: near and cheap for light failures, far and dear for heavy ones."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np

from closeranks.plan.checks import PlanInputError, positive

OVERHEAD_MAX = 0.15
"""First order holds to about a tenth of itself up to this overhead (checked by simulation)."""


class LevelsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals of each level, cheapest first, and what they waste together (writes and rework, no restarts)."""

    intervals_s: tuple[float, ...]
    overhead: float
    holds: bool
    reason: str


def plan_levels(rates_per_s: tuple[float, ...], writes_s: tuple[float, ...]) -> LevelsAnswer:
    """Return the best interval of each storage level; level l is what failures of rate l need.

    ``rates_per_s[0]`` are the light failures that the cheapest level survives, and so on; costs are independent.

    Source: Benoit et al. 2017, "Towards optimal multi-level checkpointing", first order:
    W_l = sqrt(2 C_l / lambda_l), overhead = sum sqrt(2 lambda_l C_l).
    """
    if len(rates_per_s) != len(writes_s) or not rates_per_s:
        way_out = "give one write time for each failure rate"
        raise PlanInputError("writes_s", f"{len(rates_per_s)} values", len(writes_s), way_out)
    rates, writes = positive("rates_per_s", np.array(rates_per_s)), positive("writes_s", np.array(writes_s))
    overhead = float(np.sqrt(2 * rates * writes).sum())
    intervals = tuple(map(float, np.sqrt(2 * writes / rates)))
    text = f"an overhead of {overhead:.3g} against the {OVERHEAD_MAX:g} up to which first order holds"
    if any(later < earlier for earlier, later in pairwise(intervals)):
        text += "; a farther level is saved more often than a nearer one, so the nearer one is of no use"
        return LevelsAnswer(intervals_s=intervals, overhead=overhead, holds=False, reason=text)
    return LevelsAnswer(intervals_s=intervals, overhead=overhead, holds=overhead <= OVERHEAD_MAX, reason=text)
