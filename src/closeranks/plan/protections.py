"""Every protection in one cost model, ranked by what a unit of money in it brings back.

A job's situation (``Situation``) is priced once as it is and once with each protection; the difference in money a day,
less what the protection costs, is its net benefit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from closeranks.plan import interval as saving
from closeranks.plan import money
from closeranks.plan.checks import not_negative, positive, share

if TYPE_CHECKING:
    from closeranks.plan.ageing import Bathtub

HOURS_PER_DAY = 24.0
SECONDS_PER_HOUR = 3600.0


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the cost model sees it: times in seconds, the price per accelerator-hour."""

    accelerators: float
    mtbf_s: float
    write_s: float
    restart_s: float
    price_per_accelerator_h: float
    interval_s: float | None = None  # None: the exact optimum


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """A change and its price: what it multiplies or replaces in the situation.

    ``rate_times`` multiplies the failure rate (ECC or burn-in: below 1); ``write_times`` the write; ``handled`` is
    the share of failures that recover by it in ``handled_restart_s`` (warm restart, spare, shrink) and lose only
    ``handled_lost_s`` of work, the rest as before; ``slowdown`` is the share of speed that it takes for good.
    """

    name: str
    cost_per_day: float = 0.0
    rate_times: float = 1.0
    write_times: float = 1.0
    handled: float = 0.0
    handled_restart_s: float = 0.0
    handled_lost_s: float = 0.0
    slowdown: float = 0.0
    best_interval: bool = False


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """One protection's effect. ``return_on_cost`` is saved money per unit of cost, infinite when it is free."""

    name: str
    efficiency: float
    saved_per_day: float
    cost_per_day: float
    net_per_day: float
    return_on_cost: float


def efficiency_with(situation: Situation, protection: Protection) -> float:
    """Return the efficiency of the job under a protection.

    Handled failures lose no save interval: they cost ``handled_restart_s + handled_lost_s`` at their rate; the others
    follow the exact wall time at the rate that is left.

    Source: own; Daly 2006 (complete wall-time model) at the unhandled rate, thinned Poisson processes for the split.
    """
    handled = float(share("handled", protection.handled))
    mtbf_s = situation.mtbf_s / float(positive("rate_times", protection.rate_times))
    write_s = situation.write_s * float(not_negative("write_times", protection.write_times))
    pace = 1 - float(share("slowdown", protection.slowdown))
    pace /= 1 + handled * (protection.handled_restart_s + protection.handled_lost_s) / mtbf_s
    if handled >= 1:
        return pace
    cold_mtbf_s = mtbf_s / (1 - handled)
    if situation.interval_s is None or protection.best_interval:
        kept = float(saving.best_efficiency(write_s, cold_mtbf_s, situation.restart_s))
    else:
        kept = float(saving.efficiency(situation.interval_s, write_s, cold_mtbf_s, situation.restart_s))
    return pace * kept


def rank(situation: Situation, protections: tuple[Protection, ...]) -> tuple[Ranked, ...]:
    """Return every protection with its benefit over the situation as it is, the largest net benefit first.

    Benefits are marginal, one at a time: two protections against the same failures do not add up.

    Source: own; money at the same useful work a day, N x 24 h x price x (e1 - e0).
    """
    bare = efficiency_with(situation, Protection(name="as it is"))
    rows = []
    for protection in protections:
        kept = efficiency_with(situation, protection)
        day = money.waste_per_day(situation.accelerators, 1.0, situation.price_per_accelerator_h)
        saved = (kept - bare) * day
        cost = float(not_negative(f"protection {protection.name!r}: cost_per_day", protection.cost_per_day))
        rows.append(
            Ranked(
                name=protection.name,
                efficiency=kept,
                saved_per_day=saved,
                cost_per_day=cost,
                net_per_day=saved - cost,
                return_on_cost=saved / cost if cost else float("inf") if saved > 0 else 0.0,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.net_per_day))


def warm_restart(handled: float, restart_s: float, lost_s: float = 0.0) -> Protection:
    """Return recovery in place: ``handled`` of failures keep the survivors' processes and state.

    Source: own; what a warm ladder costs is its time.
    """
    return Protection(
        name=f"warm recovery of {handled:.0%}", handled=handled, handled_restart_s=restart_s, handled_lost_s=lost_s
    )


def hot_spares(situation: Situation, count: int, per_node: int, handled: float, restart_s: float) -> Protection:
    """Return ``count`` started spare nodes, paid all day, that take the place of a lost one in ``restart_s``.

    ``handled`` is the share of failures that a spare cures and that find one free (one minus the shortage).

    Source: own, counting: count x accelerators x 24 h x price.
    """
    cost = count * per_node * HOURS_PER_DAY * situation.price_per_accelerator_h
    name = f"{count} hot spare nodes"
    return Protection(name=name, cost_per_day=cost, handled=handled, handled_restart_s=restart_s)


def shrink(situation: Situation, per_node: int, handled: float, restart_s: float, repair_h: float) -> Protection:
    """Return going on without the lost node until it is back: no spare is paid, the rest runs slower meanwhile.

    The slowdown is the mean share of nodes out: rate x repair time x node share.

    Source: own; Little 1961 for the mean number out.
    """
    out = handled * repair_h * SECONDS_PER_HOUR / situation.mtbf_s
    slowdown = min(out * per_node / situation.accelerators, 1.0)
    return Protection(name="shrink until repaired", handled=handled, handled_restart_s=restart_s, slowdown=slowdown)


def error_correction(memory_share: float, escape: float, slowdown: float, cost_per_day: float = 0.0) -> Protection:
    """Return ECC: of the ``memory_share`` of failures only ``escape`` remain, at a small slowdown.

    Source: Sridharan et al. 2015 for escapes; rates thin by the share that is corrected.
    """
    share("memory_share", memory_share)
    share("escape", escape)
    rate_times = 1 - memory_share * (1 - escape)
    return Protection(name="ECC", rate_times=rate_times, slowdown=slowdown, cost_per_day=cost_per_day)


def burn_in(situation: Situation, life: Bathtub, burn_in_h: float, service_h: float) -> Protection:
    """Return running new parts for ``burn_in_h`` before production; its price is their time, spread over their service.

    The rate falls by the early failures that are taken out, as a share of all failures in ``service_h``.

    Source: Jensen and Petersen 1982; ``plan.ageing``.
    """
    from closeranks.plan.ageing import burn_in_gain, cumulative_hazard

    positive("service_h", service_h)
    taken = float(burn_in_gain(life, burn_in_h))
    rate_times = 1 - taken / float(cumulative_hazard(life, service_h))
    cost = situation.accelerators * burn_in_h * situation.price_per_accelerator_h * HOURS_PER_DAY / service_h
    return Protection(name=f"burn-in of {burn_in_h:g} h", rate_times=rate_times, cost_per_day=cost)
