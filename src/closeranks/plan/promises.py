"""Recovery promises as constraints on the save interval; a contract that cannot be kept is explained.

RPO: the most work a failure may take. RTO: the longest time from failure to training again. Seconds.
"""

from __future__ import annotations

import msgspec

from closeranks.plan import interval as saving
from closeranks.plan.checks import not_negative, positive


class PromiseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the contract can be kept, with the interval to use and each broken clause in words.

    ``interval_s`` is the cheapest interval that keeps the RPO (0 when none can); ``worst_loss_s`` and
    ``worst_return_s`` are what it then promises; ``extra_waste`` is the price against the unconstrained optimum.
    """

    feasible: bool
    interval_s: float
    worst_loss_s: float
    worst_return_s: float
    extra_waste: float
    reasons: tuple[str, ...]


def worst_loss_s(interval_s: float, write_s: float) -> float:
    """Return the most wall time whose work one failure can take: a failure at the very end of the write.

    The same holds for blocking and for background writes: the newest durable save began one interval and one write ago.

    Source: definition of the recovery point, ISO 22301, applied to t + w.
    """
    return float(positive("interval_s", interval_s) + not_negative("write_s", write_s))


def longest_interval_s(rpo_s: float, write_s: float) -> float:
    """Return the longest interval that keeps an RPO, or 0 where the write alone takes longer. Source: RPO - w."""
    return max(float(positive("rpo_s", rpo_s)) - float(not_negative("write_s", write_s)), 0.0)


def check_contract(interval_s: float, write_s: float, rpo_s: float, return_s: float, rto_s: float) -> tuple[str, ...]:
    """Return each clause that a given interval breaks, in words; empty when the contract is kept.

    Source: ``worst_loss_s``; ``return_s`` is the recovery budget of ``plan.recovery``.
    """
    broken = []
    loss_s = worst_loss_s(interval_s, write_s)
    if loss_s > rpo_s:
        longest_s = longest_interval_s(rpo_s, write_s)
        way_out = (
            f"save at least every {longest_s:.4g} s"
            if longest_s > 0
            else f"the write alone takes {write_s:g} s: write faster, to a nearer tier, or promise less"
        )
        broken.append(
            f"RPO: an interval of {interval_s:g} s with a write of {write_s:g} s can lose {loss_s:g} s, "
            f"promised at most {rpo_s:g} s; {way_out}"
        )
    if return_s > rto_s:
        broken.append(
            f"RTO: recovery takes {return_s:g} s, promised at most {rto_s:g} s; "
            "shorten its longest phase (see the recovery budget) or promise more"
        )
    return tuple(broken)


def plan_promise(write_s: float, mtbf_s: float, return_s: float, *, rpo_s: float, rto_s: float) -> PromiseAnswer:
    """Return the cheapest interval under the contract, or why there is none.

    Source: constrained minimum of Daly 2006 (complete wall-time model), which is convex in the interval: the
    optimum or the bound.
    """
    best_s = float(saving.exact_s(write_s, mtbf_s))
    longest_s = longest_interval_s(rpo_s, write_s)
    chosen_s = min(best_s, longest_s)
    if chosen_s <= 0:
        reasons = check_contract(best_s, write_s, rpo_s, return_s, rto_s)
        return PromiseAnswer(
            feasible=False, interval_s=0, worst_loss_s=0, worst_return_s=return_s, extra_waste=0, reasons=reasons
        )
    reasons = check_contract(chosen_s, write_s, max(rpo_s, chosen_s + write_s), return_s, rto_s)
    bare = float(saving.waste(best_s, write_s, mtbf_s, return_s))
    return PromiseAnswer(
        feasible=not reasons,
        interval_s=chosen_s,
        worst_loss_s=worst_loss_s(chosen_s, write_s),
        worst_return_s=return_s,
        extra_waste=float(saving.waste(chosen_s, write_s, mtbf_s, return_s)) - bare,
        reasons=reasons,
    )
