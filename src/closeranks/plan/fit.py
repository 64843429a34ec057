"""From a failure trace to rates: an interval on every rate, and a verdict on whether it is one process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from closeranks.plan.checks import Floats, PlanInputError
from closeranks.plan.confidence import MtbfEstimate, estimate_mtbf
from closeranks.plan.lifetimes import LifeLaw, Repairs, fit_all, summarise_repairs
from closeranks.plan.special import poisson_tail
from closeranks.plan.trace import SECONDS_PER_HOUR, Trace, Unparsed, utc_text
from closeranks.plan.trend import Homogeneity, Trend, change_points, laplace_trend, same_rate

if TYPE_CHECKING:
    from closeranks.plan.trace import FailureRecord

LEMON_CONFIDENCE = 0.999
_LAW_NEEDS = 5


class FitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user knows beside the file. None: taken from the file, and said so among the assumptions.

    Failures of one domain that start within ``group_s`` of each other are one event. ``causes`` are reported even
    when none of their failures was seen: that bounds their MTBF from below.
    """

    group_s: float = 60.0
    confidence: float = 0.95
    units: int | None = None
    causes: tuple[str, ...] = ()
    from_utc_s: float | None = None
    to_utc_s: float | None = None


class CauseRate(msgspec.Struct, frozen=True, kw_only=True):
    """Failures by one cause: MTBF of the whole system and of one unit, each with its interval."""

    name: str
    share: float
    system: MtbfEstimate
    unit: MtbfEstimate


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of calendar time: its failures and the MTBF of one unit in it."""

    name: str
    from_utc: str
    to_utc: str
    unit: MtbfEstimate


class Lemon(msgspec.Struct, frozen=True, kw_only=True):
    """A unit with more failures than equal units can be expected to show."""

    unit: str
    failures: int
    expected: float


class FitReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the trace says about reliability.

    ``failures`` are rows; ``events`` groups of simultaneous ones, which is what interrupts a job. ``system`` and
    ``unit`` are MTBFs of the whole and of one unit. ``laws`` describe ``law_of`` ("gaps between events" of the
    system, or "unit lives"), best first. ``one_process`` is false when the rate changed; ``verdict`` says so in words
    and ``current`` is then the last stretch.
    """

    source: str
    from_utc: str
    to_utc: str
    failures: int
    events: int
    largest_event: int
    units: int
    unit_exposure_h: float
    system: MtbfEstimate
    event_system: MtbfEstimate
    unit: MtbfEstimate
    causes: tuple[CauseRate, ...]
    law_of: str
    laws: tuple[LifeLaw, ...]
    repairs: Repairs | None
    trend: Trend
    stretches: tuple[Period, ...]
    years: tuple[Period, ...]
    same_each_year: Homogeneity | None
    one_process: bool
    verdict: str
    lemons: tuple[Lemon, ...]
    assumptions: tuple[str, ...]
    unparsed: tuple[Unparsed, ...]
    ignored: int

    @property
    def current(self) -> Period:
        """The last stretch of constant rate: what planning should go by when the rate has changed."""
        return self.stretches[-1]


def group_events(records: tuple[FailureRecord, ...], group_s: float) -> tuple[tuple[FailureRecord, ...], ...]:
    """Return the failures as events in order of time: same domain, each within ``group_s`` of the one before it.

    Source: single-linkage clustering in time, Liang et al. 2006 (filtering of failure logs).
    """
    groups: list[list[FailureRecord]] = []
    latest: dict[str, int] = {}
    for record in sorted(records, key=lambda one: (one.start_utc_s, one.unit)):
        place = latest.get(record.domain)
        if place is not None and record.start_utc_s - groups[place][-1].start_utc_s < group_s:
            groups[place].append(record)
        else:
            latest[record.domain] = len(groups)
            groups.append([record])
    return tuple(tuple(group) for group in groups)


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Unit-hours in service up to each instant. ``at_utc_s`` and ``unit_h``: float64 [points], both rising."""

    at_utc_s: Floats
    unit_h: Floats

    def upto(self, utc_s: Floats) -> Floats:
        """Return the unit-hours collected up to each instant."""
        return np.asarray(np.interp(utc_s, self.at_utc_s, self.unit_h), dtype=np.float64)

    def when(self, unit_h: float) -> float:
        """Return the instant at which so many unit-hours had been collected."""
        return float(np.interp(unit_h, self.unit_h, self.at_utc_s))

    @property
    def total_h(self) -> float:
        """All unit-hours."""
        return float(self.unit_h[-1])


def exposure_of(trace: Trace, options: FitOptions, units: int) -> Exposure:
    """Return the exposure of a trace: the integral of units in service, or ``units`` over the window.

    Source: person-time of survival analysis, Cox and Oakes 1984.
    """
    if trace.watches and options.units is None:
        begins = np.array([watch.from_utc_s for watch in trace.watches])
        ends = np.array([watch.to_utc_s for watch in trace.watches])
        at = np.concatenate((begins, ends))
        change = np.concatenate((np.ones(begins.size), -np.ones(ends.size)))
        order = np.argsort(at, kind="stable")
        at = at[order]
        in_service = np.cumsum(change[order])
        hours = np.concatenate(([0.0], np.cumsum(in_service[:-1] * np.diff(at)))) / SECONDS_PER_HOUR
        return Exposure(at_utc_s=at, unit_h=hours)
    starts = [record.start_utc_s for record in trace.records]
    begin_s = options.from_utc_s if options.from_utc_s is not None else min(starts, default=0.0)
    end_s = options.to_utc_s if options.to_utc_s is not None else max(starts, default=0.0)
    if end_s <= begin_s:
        way_out = "say when watching began and ended: --from and --to"
        raise PlanInputError(trace.source, "a window of time above zero", "none in the file", way_out)
    whole_h = units * (end_s - begin_s) / SECONDS_PER_HOUR
    return Exposure(at_utc_s=np.array([begin_s, end_s]), unit_h=np.array([0.0, whole_h]))


def _years(exposure: Exposure, positions: Floats, confidence: float) -> tuple[tuple[Period, ...], Homogeneity | None]:
    first = datetime.fromtimestamp(float(exposure.at_utc_s[0]), UTC).year
    last = datetime.fromtimestamp(float(exposure.at_utc_s[-1]), UTC).year
    edges = np.array([datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in range(first, last + 2)])
    at = exposure.upto(edges)
    counts = np.diff(np.searchsorted(positions, at)).astype(np.float64)
    counts[-1] += np.count_nonzero(positions >= at[-1])
    rows = tuple(
        Period(
            name=str(first + index),
            from_utc=utc_text(max(edges[index], float(exposure.at_utc_s[0]))),
            to_utc=utc_text(min(edges[index + 1], float(exposure.at_utc_s[-1]))),
            unit=estimate_mtbf(int(counts[index]), float(at[index + 1] - at[index]), confidence),
        )
        for index in range(counts.size)
        if at[index + 1] > at[index]
    )
    used = np.diff(at) > 0
    return rows, same_rate(counts[used], np.diff(at)[used]) if used.sum() > 1 and counts.sum() else None


def _laws(trace: Trace, event_starts_s: Floats, end_utc_s: float) -> tuple[str, tuple[LifeLaw, ...], tuple[str, ...]]:
    if any(watch.failed for watch in trace.watches):
        name = "unit lives"
        times = np.array([watch.to_utc_s - watch.from_utc_s for watch in trace.watches]) / SECONDS_PER_HOUR
        observed = np.array([watch.failed for watch in trace.watches])
    else:
        name = "gaps between events"
        open_h = (end_utc_s - event_starts_s[-1:]) / SECONDS_PER_HOUR
        times = np.concatenate((np.diff(event_starts_s) / SECONDS_PER_HOUR, open_h))
        observed = np.append(np.ones(max(event_starts_s.size - 1, 0), dtype=bool), np.zeros(open_h.size, dtype=bool))
    keep = times > 0
    dropped = int((~keep & observed).sum())
    notes = (f"{dropped} {name} of zero length were left out of the laws",) if dropped else ()
    if (observed & keep).sum() < _LAW_NEEDS or np.ptp(times[observed & keep]) == 0:
        return name, (), (*notes, f"fewer than {_LAW_NEEDS} different {name}: no law was fitted")
    return name, fit_all(times[keep], observed[keep]), notes


def find_lemons(failures: dict[str, int], exposures: dict[str, float], fleet: int) -> tuple[Lemon, ...]:
    """Return units beyond the Poisson 99.9 % count of the fleet, corrected for looking at all units; worst first.

    ``exposures`` are weights by unit (equal where absent).

    Source: Poisson tail with Bonferroni's correction; Kokolis et al. 2025.
    """
    total = sum(failures.values())
    weight = sum(exposures.values()) or float(fleet)
    found = []
    for unit, count in failures.items():
        expected = total * (exposures.get(unit, 0.0) if exposures else 1.0) / weight
        if count >= 2 and float(poisson_tail(count - 1, expected)) < (1 - LEMON_CONFIDENCE) / fleet:  # noqa: PLR2004
            found.append(Lemon(unit=unit, failures=count, expected=expected))
    return tuple(sorted(found, key=lambda lemon: -lemon.failures))


def _counts(names: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def _verdict(stretches: tuple[Period, ...], trend: Trend) -> str:
    if len(stretches) == 1:
        return f"one process: no change of rate found; {trend.reason}"
    rates = [stretch.unit.failures / stretch.unit.exposure_h for stretch in stretches]
    fold = max(rates) / max(min(rates), 0.5 / max(stretch.unit.exposure_h for stretch in stretches))
    changes = ", ".join(stretch.from_utc[:10] for stretch in stretches[1:])
    return (
        f"not one process: the rate changes {fold:.3g}-fold between stretches (at {changes}); one MTBF over all of it "
        "describes no part of it, so plan with the last stretch"
    )


def fit_trace(trace: Trace, options: FitOptions | None = None) -> FitReport:
    """Return the report of a trace.

    Raises:
        PlanInputError: the trace has no time span; say when watching began and ended.

    Source: as each part names it (``estimate_mtbf``, ``fit_all``, ``change_points``, ``laplace_trend``).

    """
    chosen = options or FitOptions()
    assumptions = list(trace.assumptions)
    seen_units = {watch.unit for watch in trace.watches} or {record.unit for record in trace.records}
    units = chosen.units or max(len(seen_units), 1)
    exposure = exposure_of(trace, chosen, units)
    begin, end = float(exposure.at_utc_s[0]), float(exposure.at_utc_s[-1])
    records = tuple(record for record in trace.records if begin <= record.start_utc_s <= end)
    if len(records) < len(trace.records):
        assumptions.append(f"{len(trace.records) - len(records)} failures outside of the window were left out")
    starts_clock = not trace.watches and chosen.from_utc_s is None
    if starts_clock:
        assumptions.append("the window runs from the first failure (which starts the clock and is not counted)")
    if not trace.watches and chosen.to_utc_s is None:
        assumptions.append("the window ends with the last failure: give --to if watching went on")
    if chosen.units is None and not trace.watches:
        assumptions.append(f"only units that failed are known ({units}); give --units for the whole fleet")
    events = group_events(records, chosen.group_s)
    starts = np.sort(np.array([record.start_utc_s for record in records]))
    event_starts = np.array([event[0].start_utc_s for event in events])
    less = 1 if starts_clock else 0

    def mtbfs(failures: int) -> tuple[MtbfEstimate, MtbfEstimate]:
        window_h = (end - begin) / SECONDS_PER_HOUR
        unit = estimate_mtbf(failures, exposure.total_h, chosen.confidence)
        return estimate_mtbf(failures, window_h, chosen.confidence), unit

    counted = max(len(records) - less, 0)
    system, unit = mtbfs(counted)
    causes = {name.lower(): 0 for name in chosen.causes} | _counts([record.cause for record in records])
    ranked = sorted(causes.items(), key=lambda item: -item[1])
    positions = np.sort(exposure.upto(starts))
    event_positions = np.sort(exposure.upto(event_starts))
    parts = change_points(event_positions, exposure.total_h)
    stretches = tuple(
        Period(
            name=f"stretch {number}",
            from_utc=utc_text(exposure.when(part.begin)),
            to_utc=utc_text(exposure.when(part.end)),
            unit=estimate_mtbf(
                int(np.count_nonzero((positions >= part.begin) & (positions < part.end)))
                + (int(np.count_nonzero(positions >= part.end)) if number == len(parts) else 0),
                part.end - part.begin,
                chosen.confidence,
            ),
        )
        for number, part in enumerate(parts, 1)
    )
    years, same = _years(exposure, positions, chosen.confidence)
    law_of, laws, notes = _laws(trace, event_starts, end)
    watch_h: dict[str, float] = {}
    for watch in trace.watches:
        watch_h[watch.unit] = watch_h.get(watch.unit, 0.0) + (watch.to_utc_s - watch.from_utc_s) / SECONDS_PER_HOUR
    repairs = [
        (record.end_utc_s - record.start_utc_s) / SECONDS_PER_HOUR for record in records if record.end_utc_s is not None
    ]
    trend = laplace_trend(event_positions, exposure.total_h)
    return FitReport(
        source=trace.source,
        from_utc=utc_text(begin),
        to_utc=utc_text(end),
        failures=len(records),
        events=len(events),
        largest_event=max((len(event) for event in events), default=0),
        units=units,
        unit_exposure_h=exposure.total_h,
        system=system,
        event_system=mtbfs(max(len(events) - less, 0))[0],
        unit=unit,
        causes=tuple(
            CauseRate(name=name, share=count / max(len(records), 1), system=mtbfs(count)[0], unit=mtbfs(count)[1])
            for name, count in ranked
        ),
        law_of=law_of,
        laws=laws,
        repairs=summarise_repairs(np.array(repairs)),
        trend=trend,
        stretches=stretches,
        years=years,
        same_each_year=same,
        one_process=len(stretches) == 1,
        verdict=_verdict(stretches, trend),
        lemons=find_lemons(_counts([record.unit for record in records]), watch_h, units),
        assumptions=tuple(assumptions) + notes,
        unparsed=trace.unparsed,
        ignored=trace.ignored,
    )
