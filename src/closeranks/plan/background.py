"""Saving in the background: training pauses for a copy, the write goes on behind it. Times are seconds."""

from __future__ import annotations

import msgspec

from closeranks.plan.checks import PlanInputError, Real, not_negative, plain, positive
from closeranks.plan.elementwise import maximum, some
from closeranks.plan.interval import young_s
from closeranks.plan.special import golden_minimum

LOSS_MAX = 0.1
"""First order holds to a tenth of itself while a period and a write together stay below this share of the MTBF."""


class AsyncAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An interval for background writes. ``bounded`` is true where the write, not the failures, sets it.

    ``holds`` is false where the first-order waste is rough; ``reason`` says what set the interval.
    """

    interval_s: float
    unbounded_s: float
    bounded: bool
    waste: float
    holds: bool
    reason: str


def async_interval_s(pause_s: Real, write_s: Real, mtbf_s: Real) -> Real:
    """Return the best interval when training pauses ``pause_s`` and the write goes on behind it for ``write_s``.

    Saves cannot overtake each other, so the write time is its lower bound.

    Source: own, first order: max(w, sqrt(2 p M)).
    """
    return plain(maximum(positive("write_s", write_s), young_s(pause_s, mtbf_s)))


def async_waste(interval_s: Real, pause_s: Real, write_s: Real, mtbf_s: Real, restart_s: Real = 0.0) -> Real:
    """Return the first-order waste of asynchronous saving; a save counts only once it is written.

    Source: own, p/t + (t/2 + w + R)/M: work is lost back to the newest save that had finished.
    """
    interval, mtbf, write = positive("interval_s", interval_s), positive("mtbf_s", mtbf_s), positive("write_s", write_s)
    if some(interval < write):
        way_out = "save less often, or writes queue up and the newest durable save grows older for ever"
        raise PlanInputError("interval_s", "at least write_s", interval_s, way_out)
    lost = interval / 2 + write + not_negative("restart_s", restart_s)
    return plain(not_negative("pause_s", pause_s) / interval + lost / mtbf)


def best_async_interval_s(pause_s: Real, write_s: Real, mtbf_s: Real) -> Real:
    """Return the minimiser of ``async_waste`` found numerically, for checking the closed form.

    Source: Kiefer 1953 on ``async_waste``.
    """
    write = positive("write_s", write_s)
    high = write + 4 * young_s(pause_s, mtbf_s) + 1
    return plain(golden_minimum(write, high, lambda t: async_waste(maximum(t, write), pause_s, write, mtbf_s)))


def plan_async(pause_s: float, write_s: float, mtbf_s: float, restart_s: float = 0.0) -> AsyncAnswer:
    """Return interval and waste of asynchronous saving and which of the two limits sets the interval.

    Source: own, see ``async_interval_s`` and ``async_waste``.
    """
    unbounded = float(young_s(pause_s, mtbf_s))
    chosen = max(unbounded, float(positive("write_s", write_s)))
    bounded = unbounded < write_s
    text = (
        f"bounded by the write: {write_s:g} s is longer than the {unbounded:.4g} s that the pause alone would ask for"
        if bounded
        else f"set by the pause of {pause_s:g} s against an MTBF of {mtbf_s:g} s"
    )
    load = (chosen + write_s) / mtbf_s
    if load > LOSS_MAX:
        text += f"; out of the first-order regime: a period and a write take {load:.2g} of the MTBF"
    return AsyncAnswer(
        interval_s=chosen,
        unbounded_s=unbounded,
        bounded=bounded,
        waste=float(async_waste(chosen, pause_s, write_s, mtbf_s, restart_s)),
        holds=load <= LOSS_MAX,
        reason=text,
    )
