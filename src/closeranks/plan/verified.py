"""Saving when some errors are silent: verify, then save, so that every save is known to be good. Seconds."""

from __future__ import annotations

import msgspec
import numpy as np

from closeranks.plan.checks import Floats, PlanInputError, Real, not_negative, plain, positive
from closeranks.plan.special import golden_minimum

LOSS_MAX = 0.1


class SilentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The interval between verified saves: first order and exact, each with its overhead over the bare work.

    ``holds`` is true while the first-order overhead is within a tenth of the exact one.
    """

    interval_s: float
    overhead: float
    exact_interval_s: float
    exact_overhead: float
    holds: bool
    reason: str


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Errors per second: those that stop the job at once, and those that only a verification sees."""

    fail_stop_per_s: float
    silent_per_s: float


def verified_time_s(interval_s: Real, write_s: float, verify_s: float, rates: Rates, restart_s: float = 0.0) -> Real:
    """Return the expected wall time of one interval of work, its verification and its save.

    Work, verification and save can be stopped; a silent error strikes the work alone and is seen by the verification.
    Either way the interval is begun again from the last save after ``restart_s`` (which is not stopped itself).

    Source: own, exact; expected time of an attempt over its chance of success (Wald), the pattern of Benoit and
    Robert 2016.
    """
    work = positive("interval_s", interval_s)
    stop = float(not_negative("fail_stop_per_s", rates.fail_stop_per_s))
    silent = np.exp(-float(not_negative("silent_per_s", rates.silent_per_s)) * work)
    checked = work + float(not_negative("verify_s", verify_s))
    write = float(not_negative("write_s", write_s))
    reached = np.exp(-stop * checked)

    def spent(span: Floats | float) -> Floats:
        return np.asarray(-np.expm1(-stop * np.asarray(span)) / stop if stop > 0 else span, dtype=np.float64)

    with np.errstate(divide="ignore", over="ignore"):
        succeeds = reached * silent * np.exp(-stop * write)
        attempt = spent(checked) + reached * silent * spent(write)
        again = (1 - succeeds) * float(not_negative("restart_s", restart_s))
        return plain(np.asarray((attempt + again) / succeeds, dtype=np.float64))


def plan_verified(write_s: float, verify_s: float, fail_stop_per_s: float, silent_per_s: float) -> SilentAnswer:
    """Return how often to verify and save when some errors are silent until the next verification.

    Source: Aupy, Benoit, Herault, Robert, Vivien and Zaidouni 2013; Benoit and Robert 2016:
    W = sqrt((V + C)/(l_s + l_f/2)), H = 2 sqrt((V + C)(l_s + l_f/2)); the exact optimum of ``verified_time_s``.
    """
    pressure = float(not_negative("silent_per_s", silent_per_s) + not_negative("fail_stop_per_s", fail_stop_per_s) / 2)
    cost = float(not_negative("write_s", write_s) + not_negative("verify_s", verify_s))
    if pressure <= 0 or cost <= 0:
        raise PlanInputError("rates and costs", "some of each above zero", "none", "nothing to plan without both")
    rates = Rates(fail_stop_per_s=fail_stop_per_s, silent_per_s=silent_per_s)
    first_s, overhead = (cost / pressure) ** 0.5, 2 * (cost * pressure) ** 0.5

    def per_second(log_interval: Floats) -> Real:
        at = np.exp(log_interval)
        return plain(np.asarray(verified_time_s(plain(at), write_s, verify_s, rates)) / at)

    middle = np.log(first_s)
    best_s = float(np.exp(golden_minimum(middle - 3, middle + 1, per_second, rounds=60)))
    exact = float(verified_time_s(best_s, write_s, verify_s, rates)) / best_s - 1
    holds = abs(overhead - exact) <= LOSS_MAX * exact
    verdict = "holds" if holds else "out of its regime"
    return SilentAnswer(
        interval_s=first_s,
        overhead=overhead,
        exact_interval_s=best_s,
        exact_overhead=exact,
        holds=holds,
        reason=f"first order {verdict}: overhead {overhead:.4f}, exact {exact:.4f}",
    )
