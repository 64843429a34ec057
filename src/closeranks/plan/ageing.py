"""Failure rates that change with age: burn-in, useful life, wear-out, fleets of mixed age, and lemons."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from closeranks.plan.checks import Floats, PlanInputError, Real, not_negative, plain, positive, share, whole
from closeranks.plan.special import poisson_tail


class Bathtub(msgspec.Struct, frozen=True, kw_only=True):
    """A hazard in three parts, per hour of age; a part with rate 0 or scale infinity is absent.

    ``early_per_h`` fades with time constant ``early_h``; ``useful_per_h`` is constant; wear-out is a Weibull hazard
    of shape ``wear_shape`` > 1 and scale ``wear_scale_h``.
    """

    useful_per_h: float
    early_per_h: float = 0.0
    early_h: float = 1.0
    wear_shape: float = 5.0
    wear_scale_h: float = math.inf

    def __post_init__(self) -> None:
        """Refuse impossible parts by name."""
        not_negative("useful_per_h", self.useful_per_h)
        not_negative("early_per_h", self.early_per_h)
        positive("early_h", self.early_h)
        if not self.wear_shape > 1 or not self.wear_scale_h > 0:
            got = f"{self.wear_shape:g} and {self.wear_scale_h:g}"
            raise PlanInputError("wear_shape and wear_scale_h", "above 1 and above 0", got, "inf hours: no wear-out")


def hazard_per_h(life: Bathtub, age_h: Real) -> Real:
    """Return failures per hour at an age.

    Source: Barlow and Proschan 1965 (competing risks: hazards add); Weibull 1951 for wear-out.
    """
    age = not_negative("age_h", age_h)
    early = life.early_per_h * np.exp(-age / life.early_h)
    wear = life.wear_shape / life.wear_scale_h * (age / life.wear_scale_h) ** (life.wear_shape - 1)
    return plain(np.asarray(early + life.useful_per_h + wear, dtype=np.float64))


def cumulative_hazard(life: Bathtub, age_h: Real) -> Real:
    """Return the expected failures of one always-repaired unit up to an age.

    Source: integral of ``hazard_per_h``; minimal repair, Barlow and Hunter 1960.
    """
    age = not_negative("age_h", age_h)
    early = -life.early_per_h * life.early_h * np.expm1(-age / life.early_h)
    return plain(np.asarray(early + life.useful_per_h * age + (age / life.wear_scale_h) ** life.wear_shape))


def phase_at(life: Bathtub, age_h: float) -> str:
    """Return "burn-in", "useful life" or "wear-out": the part of the hazard that dominates at that age.

    Burn-in and wear-out are named once they exceed the constant part.

    Source: definition of the three phases, MIL-HDBK-338B.
    """
    age = float(not_negative("age_h", age_h))
    early = life.early_per_h * math.exp(-age / life.early_h)
    wear = float(hazard_per_h(life, age)) - early - life.useful_per_h
    if max(early, wear) <= life.useful_per_h:
        return "useful life"
    return "burn-in" if early >= wear else "wear-out"


def burn_in_gain(life: Bathtub, burn_in_h: Real) -> Real:
    """Return the early failures per unit that a burn-in of that length takes out before production.

    Source: Jensen and Petersen 1982; the early part of ``cumulative_hazard``.
    """
    return plain(-life.early_per_h * life.early_h * np.expm1(-not_negative("burn_in_h", burn_in_h) / life.early_h))


def fleet_rate_per_h(life: Bathtub, ages_h: Floats, units: Floats) -> float:
    """Return the failure rate of a fleet of mixed age. ``ages_h`` and ``units``: float64 [cohorts].

    Source: superposition of independent processes, sum of n_i h(age_i).
    """
    return float((not_negative("units", units) * np.asarray(hazard_per_h(life, ages_h))).sum())


class Mixture(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet in which a few lemons fail far more often. ``lemon_failures`` is their share of all failures."""

    rate_per_h: float
    lemon_failures: float
    rate_without_per_h: float


def with_lemons(units: float, good_per_h: float, lemon_share: float, times_worse: float) -> Mixture:
    """Return the fleet's rate with a share of units that fail ``times_worse`` as often, and without them.

    Source: Kokolis et al. 2025 (lemon nodes: 1.2 % of nodes, 13 % of daily failures); mixture of Poisson.
    """
    lemons = float(positive("units", units) * share("lemon_share", lemon_share))
    base = float(not_negative("good_per_h", good_per_h))
    bad_rate, good_rate = lemons * base * float(positive("times_worse", times_worse)), (units - lemons) * base
    total = bad_rate + good_rate
    return Mixture(rate_per_h=total, lemon_failures=bad_rate / total if total else 0.0, rate_without_per_h=units * base)


def lemon_count(units: int, failures: int, confidence: float = 0.999) -> int:
    """Return the failures of one unit at which it counts as a lemon among ``units`` equals.

    The threshold is corrected for looking at all units: a fleet of equal units shows a false lemon with a chance of
    at most ``1 - confidence``.

    Source: Poisson tail with Bonferroni's correction.
    """
    mean = whole("failures", failures) / whole("units", units, 1)
    allowed = (1 - float(share("confidence", confidence))) / units
    count = max(1, math.floor(mean))
    while float(poisson_tail(count - 1, mean)) > allowed:
        count += 1
    return count
