"""Failure rates of parts and of what is built from them: FIT, MTBF, cascades, series and parallel systems.

Rates are failures per hour, assumed constant in the useful life of a part; ``plan.ageing`` has the other phases.
"""

from __future__ import annotations

import msgspec

from closeranks.plan.checks import PlanInputError, Real, not_negative, plain, positive, share
from closeranks.plan.elementwise import exp, log, log1p, where

HOURS_PER_DAY = 24.0
HOURS_PER_FIT = 1e9
SECONDS_PER_HOUR = 3600.0
BITS_PER_MEGABIT = 1e6


def rate_per_h_of_fit(fit: Real) -> Real:
    """Return failures per hour of a rate in FIT. Source: JESD89B, 1 FIT = one failure in 1e9 device-hours."""
    return plain(not_negative("fit", fit) / HOURS_PER_FIT)


def fit_of_mtbf(mtbf_h: Real) -> Real:
    """Return the rate in FIT of a mean time between failures in hours. Source: JESD89B, 1e9 / MTBF."""
    return plain(HOURS_PER_FIT / positive("mtbf_h", mtbf_h))


def mtbf_h_of_fit(fit: Real) -> Real:
    """Return the mean time between failures in hours of a rate in FIT. Source: JESD89B, 1e9 / FIT."""
    return plain(HOURS_PER_FIT / positive("fit", fit, "a part that never fails has no MTBF; leave it out"))


def system_mtbf_h(unit_mtbf_h: Real, units: Real) -> Real:
    """Return the MTBF in hours of ``units`` equal parts that must all work.

    Source: Barlow and Proschan 1965, superposition of Poisson processes, M/n.
    """
    return plain(positive("unit_mtbf_h", unit_mtbf_h) / positive("units", units))


def failures_per_day(mtbf_h: Real) -> Real:
    """Return the expected failures in 24 h. Source: renewal rate 1/MTBF."""
    return plain(HOURS_PER_DAY / positive("mtbf_h", mtbf_h))


def survival(mtbf_h: Real, hours: Real) -> Real:
    """Return the chance of no failure in ``hours``. Source: exponential law, e^(-t/M)."""
    return plain(exp(-not_negative("hours", hours) / positive("mtbf_h", mtbf_h)))


def series_reliability(each: Real, units: Real) -> Real:
    """Return the chance that all of ``units`` work when each works with chance ``each``.

    Source: product rule for independent parts, computed as e^(n ln r) to keep precision near one.
    """
    reliability, count = share("each", each), not_negative("units", units)
    powers = exp(where(count == 0, 1.0, count) * log(reliability))
    return plain(where(count == 0, 1.0, powers))


def parallel_reliability(each: Real, units: Real) -> Real:
    """Return the chance that at least one of ``units`` works. Source: 1 - (1 - r)^n for independent parts."""
    reliability, count = share("each", each), not_negative("units", units)
    none = exp(where(count == 0, 1.0, count) * log1p(-reliability))
    return plain(where(count == 0, 0.0, 1 - none))


def memory_upsets_per_h(capacity_bytes: Real, fit_per_mbit: Real, escape: Real = 1.0) -> Real:
    """Return the upsets per hour of a memory, of which ``escape`` get past its error correction.

    ``capacity_bytes`` counts decimal bytes and a Mbit is 1e6 bits. Without ECC ``escape`` is 1; with SECDED it
    is the share of upsets that hit two bits of a word (a measured figure, 1e-3 to 1e-2 in field studies).

    Source: JESD89B soft-error rate per Mbit; Schroeder, Pinheiro and Weber 2009 for the range of FIT per Mbit.
    """
    megabits = not_negative("capacity_bytes", capacity_bytes) * 8 / BITS_PER_MEGABIT
    fit = megabits * not_negative("fit_per_mbit", fit_per_mbit) * share("escape", escape)
    return plain(fit / HOURS_PER_FIT)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of component in a cluster of accelerators.

    ``serves`` accelerators share one part (8 for a power supply of a node); ``per_accelerator`` counts how many an
    accelerator owns. ``needed`` and ``installed`` of a redundant group: the group fails when fewer than ``needed``
    of ``installed`` work, each out for ``repair_h``.
    """

    name: str
    mtbf_h: float
    serves: float = 1
    per_accelerator: float = 1
    needed: int = 1
    installed: int = 1
    repair_h: float = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible parts by name."""
        positive(f"part {self.name!r}: mtbf_h", self.mtbf_h)
        positive(f"part {self.name!r}: serves", self.serves)
        positive(f"part {self.name!r}: per_accelerator", self.per_accelerator)
        not_negative(f"part {self.name!r}: repair_h", self.repair_h)
        if not 1 <= self.needed <= self.installed:
            where = f"part {self.name!r}: needed"
            raise PlanInputError(where, f"1 to installed ({self.installed})", self.needed, "install more or need fewer")
        if self.installed > self.needed and self.repair_h <= 0:
            where = f"part {self.name!r}: repair_h"
            raise PlanInputError(where, "hours > 0", self.repair_h, "redundancy without a repair time has no rate")


class PartRate(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of part adds to the failures of the whole."""

    name: str
    count: float
    failures_per_h: float
    share: float


class Cascade(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of a cluster and what they come to together; the largest contributor first."""

    accelerators: float
    parts: tuple[PartRate, ...]
    failures_per_h: float

    @property
    def mtbf_h(self) -> float:
        """The mean time between failures of the job that needs all of it, in hours."""
        return 1 / self.failures_per_h

    @property
    def failures_per_day(self) -> float:
        """Expected failures in 24 h."""
        return HOURS_PER_DAY * self.failures_per_h


def redundant_group_rate_per_h(part: Part) -> float:
    """Return how often a group of ``installed`` parts falls below ``needed``, each under its own repair.

    Source: Trivedi 2002, frequency of crossing from ``needed`` to ``needed - 1`` working parts in the
    birth-death chain with unlimited repair.
    """
    if part.installed == part.needed:
        return part.installed / part.mtbf_h
    from closeranks.plan.availability import machine_repair_law

    law = machine_repair_law(
        units=part.installed, needed=part.needed, mtbf_h=part.mtbf_h, repair_h=part.repair_h, crews=part.installed
    )
    return float(law[part.installed - part.needed] * part.needed / part.mtbf_h)


def cascade(accelerators: float, parts: tuple[Part, ...]) -> Cascade:
    """Return how often a job on ``accelerators`` fails, and by which part.

    Shared parts are divided over what they serve; redundant groups add the rate at which the group falls short.
    Each part counts as one event however many accelerators it takes down.

    Source: FIT addition in a series system (MIL-HDBK-217F; MLSysBook, "fleet reliability cascade").
    """
    positive("accelerators", accelerators)
    if not parts:
        raise PlanInputError("parts", "at least one part", "none", "give a GPU with its mtbf_h")
    names = [part.name for part in parts]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PlanInputError("parts", "one entry for each name", f"{twice!r} twice", "merge or rename them")
    counts = [accelerators * part.per_accelerator / part.serves for part in parts]
    rates = [count * redundant_group_rate_per_h(part) for count, part in zip(counts, parts, strict=True)]
    total = sum(rates)
    rows = (
        PartRate(name=part.name, count=count, failures_per_h=rate, share=rate / total)
        for part, count, rate in zip(parts, counts, rates, strict=True)
    )
    ranked = tuple(sorted(rows, key=lambda row: -row.failures_per_h))
    return Cascade(accelerators=accelerators, parts=ranked, failures_per_h=total)
