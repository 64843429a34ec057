"""Where a textbook formula stops to hold: each is shown with what it really achieves beside the exact optimum."""

from __future__ import annotations

import math

import msgspec

from closeranks.plan import interval
from closeranks.plan.checks import not_negative, positive

LOSS_MAX = 0.01
"""A formula holds while following it costs at most this share of the best efficiency."""


class FormulaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One formula's interval and the exact consequences of following it.

    ``loss`` is the share of the best attainable efficiency that it gives away; ``holds`` is ``loss <= LOSS_MAX``;
    ``reason`` says why in words, with numbers.
    """

    name: str
    interval_s: float
    efficiency: float
    loss: float
    holds: bool
    reason: str


def _answer(name: str, interval_s: float, numbers: tuple[float, float, float, float], limit: str) -> FormulaAnswer:
    write_s, mtbf_s, restart_s, downtime_s = numbers
    best = float(interval.best_efficiency(write_s, mtbf_s, restart_s, downtime_s))
    got = float(interval.efficiency(interval_s, write_s, mtbf_s, restart_s, downtime_s)) if interval_s > 0 else 0.0
    loss = 1 - got / best if best > 0 else 1.0
    holds = loss <= LOSS_MAX
    verdict = "holds" if holds else f"out of its regime ({limit})"
    reason = f"{verdict}: write/MTBF is {write_s / mtbf_s:.3g}; following it gives away {max(loss, 0):.2%} of the best"
    return FormulaAnswer(
        name=name, interval_s=interval_s, efficiency=got, loss=max(loss, 0.0), holds=holds, reason=reason
    )


def compare_intervals(
    write_s: float, mtbf_s: float, restart_s: float = 0.0, downtime_s: float = 0.0
) -> tuple[FormulaAnswer, ...]:
    """Return every formula's interval judged by the exact wall time, the exact optimum first.

    Source: Young 1974; Daly 2006 (first order) and eq. 37; the judge is Daly 2006 (complete wall-time model).
    """
    numbers = (float(positive("write_s", write_s)), float(positive("mtbf_s", mtbf_s)), restart_s, downtime_s)
    not_negative("restart_s", restart_s)
    not_negative("downtime_s", downtime_s)
    small = "needs a write far shorter than the MTBF"
    return (
        _answer("exact", float(interval.exact_s(write_s, mtbf_s)), numbers, "never"),
        _answer("Daly higher order", float(interval.daly_higher_order_s(write_s, mtbf_s)), numbers, "write < 2 MTBF"),
        _answer("Daly first order", float(interval.daly_first_order_s(write_s, mtbf_s, restart_s)), numbers, small),
        _answer("Young", float(interval.young_s(write_s, mtbf_s)), numbers, small),
    )


class WasteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The waste at one interval: exact, and by the two approximations with whether they hold there.

    An approximation holds while it is within a tenth of the exact value.
    """

    exact: float
    first_order: float
    first_order_holds: bool
    product: float
    product_holds: bool
    reason: str


def compare_waste(
    interval_s: float, write_s: float, mtbf_s: float, restart_s: float = 0.0, downtime_s: float = 0.0
) -> WasteAnswer:
    """Return the exact waste beside its approximations, each marked where it no longer holds.

    Source: Daly 2006 (complete wall-time model); Young 1974; Herault and Robert 2015 (product form).
    """
    given = (interval_s, write_s, mtbf_s, restart_s, downtime_s)
    exact = float(interval.waste(*given))
    first, product = float(interval.waste_first_order(*given)), float(interval.waste_product(*given))
    period = interval_s + write_s
    within = 0.1 * exact
    text = f"period {period:.4g} s against MTBF {mtbf_s:.4g} s"
    if first > 1:
        text += "; the first order claims to waste more than all time"
    return WasteAnswer(
        exact=exact,
        first_order=first,
        first_order_holds=math.isclose(first, exact, abs_tol=within, rel_tol=0),
        product=product,
        product_holds=math.isclose(product, exact, abs_tol=within, rel_tol=0),
        reason=text,
    )
