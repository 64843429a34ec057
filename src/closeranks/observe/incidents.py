"""One row per incident: what was lost, why, what was done about it, and how long each phase took."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

import msgspec

from closeranks.events import (
    AnyEvent,
    CanaryFailed,
    CanaryPassed,
    Decided,
    Diagnosed,
    ErrorSeen,
    IncidentClosed,
    IncidentOpened,
    IncidentWidened,
    NormalAgain,
    ProcessFailed,
    Record,
    Rung,
    StackCaptured,
)
from closeranks.observe.history import History, Span, history_of
from closeranks.observe.stalls import LOST_ATTEMPT, lost_before
from closeranks.observe.text import canary_text

OPEN = "open"
_WITHIN_S = 5.0  # a process tells of its exception at most this long before its loss is noticed


class RungTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the controller, with its reason."""

    rung: Rung
    term: int
    reason: str


class CrashText(msgspec.Struct, frozen=True, kw_only=True):
    """An uncaught exception in a worker."""

    process: str
    error: str
    message: str
    where: str
    step: int
    traceback: str


class StackFile(msgspec.Struct, frozen=True, kw_only=True):
    """Stacks that were taken before a process was killed."""

    process: str
    path: str
    summary: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One incident. Times are seconds; ``None`` where the instant has not come (yet)."""

    incident: int
    at_s: float  # of the first sign, since the run began
    seats: tuple[int, ...]
    summary: str
    detectors: tuple[str, ...]
    fault: str  # "unknown" until it is diagnosed
    culprits: tuple[int, ...]
    confidence: float
    evidence: tuple[str, ...]
    rungs: tuple[RungTaken, ...]
    phases: dict[str, float]  # by part of the recovery, in order
    took_s: float  # from the first sign to the end of the last phase, or to now
    first_step_s: float | None  # from the first sign to the close of the first new step
    normal_s: float | None  # until step time was back in its band
    steps_lost: int | None
    canary: str  # what the steps after it showed; "": no verdict
    outcome: str  # "recovered", "stopped" or "open"
    crashes: tuple[CrashText, ...]
    stacks: tuple[StackFile, ...]


def incidents_of(records: Sequence[Record]) -> tuple[Incident, ...]:
    """All incidents of a run, in the order of their opening."""
    return incidents(history_of(records), records)


def incidents(history: History, records: Sequence[Record]) -> tuple[Incident, ...]:
    """Like ``incidents_of``, for records that are sorted already."""
    by_incident: dict[int, list[AnyEvent]] = {number: [] for number in history.incident_spans}
    for record in records:
        number = getattr(record.event, "incident", None)
        if number in by_incident:
            by_incident[number].append(record.event)
    told = [record for record in records if isinstance(record.event, ProcessFailed | StackCaptured)]
    told.sort(key=_told_s)
    lost_s = lost_before(history)
    return tuple(_incident(history, told, lost_s, events) for events in by_incident.values())


def _incident(history: History, told: list[Record], lost_s: Mapping[int, float], events: list[AnyEvent]) -> Incident:
    opened = next(event for event in events if isinstance(event, IncidentOpened))
    widened = [event for event in events if isinstance(event, IncidentWidened)]
    errors = [event for event in events if isinstance(event, ErrorSeen)]
    diagnosed = next((event for event in reversed(events) if isinstance(event, Diagnosed)), None)
    closed = next((event for event in events if isinstance(event, IncidentClosed)), None)
    normal = next((event for event in events if isinstance(event, NormalAgain)), None)
    span = history.incident_spans[opened.incident]
    losses: list[IncidentOpened | IncidentWidened] = [opened, *widened]
    seats = tuple(dict.fromkeys(seat for loss in losses for seat in loss.seats))
    procs = {event.proc for event in errors}
    near = _near(told, span)
    return Incident(
        incident=opened.incident,
        at_s=span.begin_s - history.span.begin_s,
        seats=seats,
        summary="; then ".join(loss.summary for loss in losses),
        detectors=tuple(dict.fromkeys(event.detector for event in errors)),
        fault="unknown" if diagnosed is None else diagnosed.fault,
        culprits=() if diagnosed is None else diagnosed.culprits,
        confidence=0.0 if diagnosed is None else diagnosed.confidence,
        evidence=() if diagnosed is None else diagnosed.evidence,
        rungs=tuple(RungTaken(rung=e.rung, term=e.term, reason=e.reason) for e in events if isinstance(e, Decided)),
        phases=_phase_seconds(history, opened.incident, span, lost_s[opened.incident]),
        took_s=span.length_s,
        first_step_s=None if closed is None else closed.first_step_s,
        normal_s=None if normal is None else normal.after_s,
        steps_lost=None if closed is None else closed.steps_lost,
        canary=next((canary_text(e) for e in events if isinstance(e, CanaryPassed | CanaryFailed)), ""),
        outcome=OPEN if closed is None else closed.outcome,
        crashes=_crashes(history, near, procs, seats),
        stacks=_stacks(history, near, procs),
    )


def _phase_seconds(history: History, number: int, span: Span, lost_s: float) -> dict[str, float]:
    """The parts of the recovery; the attempt that was lost before the first sign comes first."""
    parts: dict[str, float] = {}
    if lost_s > 0:
        parts[LOST_ATTEMPT] = lost_s
    for phase in history.phases_near(span):
        if phase.incident == number:
            parts[phase.phase.value] = parts.get(phase.phase.value, 0.0) + phase.span.length_s
    return parts


def _near(told: list[Record], span: Span) -> list[Record]:
    """What was told within an incident, or a little before its first sign."""
    first = bisect.bisect_left(told, span.begin_s - _WITHIN_S, key=_told_s)
    return told[first : bisect.bisect_right(told, span.end_s, key=_told_s)]


def _told_s(record: Record) -> float:
    return record.mono_s


def _crashes(
    history: History, near: list[Record], procs: set[int | None], seats: tuple[int, ...]
) -> tuple[CrashText, ...]:
    return tuple(
        CrashText(
            process=_name(history, record.event.proc),
            error=record.event.error,
            message=record.event.message,
            where=record.event.where,
            step=record.event.step,
            traceback=record.event.traceback,
        )
        for record in near
        if isinstance(record.event, ProcessFailed) and (record.event.proc in procs or record.event.seat in seats)
    )


def _stacks(history: History, near: list[Record], procs: set[int | None]) -> tuple[StackFile, ...]:
    return tuple(
        StackFile(process=_name(history, record.event.proc), path=record.event.path, summary=record.event.summary)
        for record in near
        if isinstance(record.event, StackCaptured) and (record.event.proc in procs or not procs)
    )


def _name(history: History, proc: int) -> str:
    process = history.processes.get(proc)
    return f"p{proc}" if process is None else process.name
