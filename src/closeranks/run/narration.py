"""The events that a person at the console wants to read as they happen, one line each."""

from __future__ import annotations

import functools

from closeranks.events import (
    Decided,
    Diagnosed,
    ErrorSeen,
    Event,
    HookRan,
    IncidentClosed,
    IncidentOpened,
    IncidentWidened,
    NormalAgain,
    SignalReceived,
)


@functools.singledispatch
def narrate(_event: Event) -> str:
    """The line, "" for events that are only kept in the journal."""
    return ""


@narrate.register
def _(event: SignalReceived) -> str:
    return f"signal {event.signal}: {event.meaning}"


@narrate.register
def _(event: ErrorSeen) -> str:
    return f"{event.detector}: {event.detail}"


@narrate.register
def _(event: IncidentOpened) -> str:
    return f"incident {event.incident} opened: {event.summary}"


@narrate.register
def _(event: IncidentWidened) -> str:
    return f"incident {event.incident} widened: {event.summary}"


@narrate.register
def _(event: Diagnosed) -> str:
    return f"incident {event.incident}: {event.fault}, confidence {event.confidence:.0%}"


@narrate.register
def _(event: Decided) -> str:
    return f"incident {event.incident}: {event.rung} ({event.reason})"


@narrate.register
def _(event: IncidentClosed) -> str:
    after = "" if event.first_step_s is None else f", first new step after {event.first_step_s:.2f} s"
    return f"incident {event.incident} {event.outcome}: {event.steps_lost} steps lost{after}"


@narrate.register
def _(event: NormalAgain) -> str:
    return f"incident {event.incident}: step time is normal again after {event.after_s:.1f} s"


@narrate.register
def _(event: HookRan) -> str:
    return f"--on-incident for incident {event.incident}: {event.problem}" if event.problem else ""
