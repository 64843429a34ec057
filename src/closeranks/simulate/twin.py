"""The twin of a real drill: its faults in the virtual cluster, with times that were seen in a real run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from closeranks.decide.state import Settings
from closeranks.events import (
    FaultInjected,
    Phase,
    ProcessExited,
    ProcessJoined,
    ProcessReady,
    ProcessStarted,
    Record,
    RunStarted,
    StepClosed,
    TermBegan,
)
from closeranks.observe.goodput import ledger
from closeranks.observe.history import history_of
from closeranks.observe.incidents import incidents
from closeranks.plan.checks import PlanInputError
from closeranks.simulate.setup import Setup
from closeranks.simulate.strikes import Kind, Strike
from closeranks.simulate.timing import Timing

_KINDS: Final = {
    **{kind.value: kind for kind in (Kind.CRASH, Kind.HANG)},
    **dict.fromkeys(("kill", "segfault", "exit_code", "exception", "system_exit"), Kind.CRASH),
    **dict.fromkeys(("freeze", "gil", "block"), Kind.HANG),
}
_ANSWERING: Final = frozenset({"block"})  # hangs that leave the control thread alone
_ENDS_WITHIN_S: Final = 5.0  # a process that a fault ended is gone so soon after it


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual run that stands beside a real one."""

    setup: Setup
    strikes: tuple[Strike, ...]


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both."""

    name: str
    real: float
    virtual: float

    @property
    def off(self) -> float:
        """How far the virtual one is off, as a share of the real one."""
        return abs(self.virtual - self.real) / self.real if self.real else abs(self.virtual)


def timing_seen(records: Sequence[Record]) -> Timing:
    """What the phases of recoveries took in a real run, in the median.

    Raises:
        PlanInputError: the run has no incident that was recovered from, so there is nothing to learn.
    """
    history = history_of(records)
    rows = [row for row in incidents(history, records) if row.outcome == "recovered"]
    if not rows:
        way_out = "calibrate with a drill in which a fault struck: closeranks drill PLAN.toml --keep DIR"
        raise PlanInputError(history.run, "an incident that was recovered from", "none", way_out)
    step_s = step_seen(records)
    processes = _process_times(records)

    def of(*phases: Phase) -> float:
        return statistics.median(sum(row.phases.get(phase.value, 0.0) for phase in phases) for row in rows)

    return Timing(
        detect_s=_median(_detect_times(records)),
        end_s=0.0,
        pause_s=of(Phase.ISOLATE, Phase.INTERRUPT),
        start_s=_median(processes["start"]),
        ready_s=_median(processes["ready"]),
        connect_s=of(Phase.REGROUP, Phase.AGREE),
        transfer_s=of(Phase.TRANSFER),
        load_s=_median(_load_times(records)),
        resume_s=max(0.0, of(Phase.VERIFY) - step_s),
    )


def step_seen(records: Sequence[Record]) -> float:
    """The median step of a run."""
    steps = [r.event.closed_mono_s - r.event.began_mono_s for r in records if isinstance(r.event, StepClosed)]
    return _median(steps)


def twin_of(records: Sequence[Record], timing: Timing) -> Twin:
    """The same run in the virtual cluster: its size, its steps, and its faults at the same moments of training.

    Raises:
        PlanInputError: a fault of the run has no counterpart, or the run closed no step.
    """
    started = next((r.event for r in records if isinstance(r.event, RunStarted)), None)
    steps = [r.event for r in records if isinstance(r.event, StepClosed)]
    if started is None or not steps:
        raise PlanInputError("the real run", "a journal with closed steps", "none", "give the folder of a drilled run")
    # Training opens in the twin after these phases.
    begin_s = timing.start_s + timing.connect_s + timing.load_s + timing.warm_up_s
    real_begin_s = steps[0].began_mono_s
    strikes = []
    for record in records:
        event = record.event
        if not isinstance(event, FaultInjected):
            continue
        if event.fault not in _KINDS:
            known = ", ".join(sorted(_KINDS))
            raise PlanInputError("the real run", f"faults of kind {known}", event.fault, "drill with one of these")
        at_s, answers = begin_s + record.mono_s - real_begin_s, event.fault in _ANSWERING
        strikes.append(Strike(at_s=at_s, kind=_KINDS[event.fault], seat=event.seat or 0, answers=answers))
    setup = Setup(
        settings=Settings(seats=started.seats, spares=started.spares),
        timing=timing,
        step_s=step_seen(records),
        until=max(step.step for step in steps) + 1,
        every_step=True,
    )
    return Twin(setup=setup, strikes=tuple(strikes))


def beside(real: Sequence[Record], virtual: Sequence[Record]) -> tuple[Beside, ...]:
    """Steps lost and downtime of both, read from their journals by the same functions."""
    return (
        Beside(name="steps lost", real=_steps_lost(real), virtual=_steps_lost(virtual)),
        Beside(name="incidents", real=len(_rows(real)), virtual=len(_rows(virtual))),
        Beside(name="seconds from first sign to the next step", real=_down_s(real), virtual=_down_s(virtual)),
        Beside(name="stalled seat-seconds", real=_stalled_s(real), virtual=_stalled_s(virtual)),
    )


def _rows(records: Sequence[Record]) -> tuple[float, ...]:
    return tuple(row.first_step_s or row.took_s for row in incidents(history_of(records), records))


def _down_s(records: Sequence[Record]) -> float:
    return sum(_rows(records))


def _steps_lost(records: Sequence[Record]) -> float:
    return sum(row.steps_lost or 0 for row in incidents(history_of(records), records))


def _stalled_s(records: Sequence[Record]) -> float:
    return sum(ledger(history_of(records)).stalled.values())


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.median(known) if known else 0.0


def _detect_times(records: Sequence[Record]) -> list[float]:
    """From a fault to the record of the end that it caused."""
    exits = [record for record in records if isinstance(record.event, ProcessExited) and not record.event.asked]
    found = []
    for record in records:
        if not isinstance(record.event, FaultInjected):
            continue
        waits = [e.mono_s - record.mono_s for e in exits if e.event.seat == record.event.seat]  # type: ignore[union-attr]
        found.append(min((wait_s for wait_s in waits if 0 <= wait_s < _ENDS_WITHIN_S), default=math.nan))
    return [wait_s for wait_s in found if math.isfinite(wait_s)]


def _process_times(records: Sequence[Record]) -> dict[str, list[float]]:
    started: dict[int, float] = {}
    joined: dict[int, float] = {}
    spares: set[int] = set()
    found: dict[str, list[float]] = {"start": [], "ready": []}
    for record in records:
        event = record.event
        if isinstance(event, ProcessStarted):
            started[event.proc] = record.mono_s
            spares |= {event.proc} if event.seat is None else set()
        elif isinstance(event, ProcessJoined) and event.proc in started:
            joined[event.proc] = record.mono_s
            found["start"].append(record.mono_s - started[event.proc])
        elif isinstance(event, ProcessReady) and event.proc in joined and event.proc in spares:
            found["ready"].append(record.mono_s - joined[event.proc])
            spares.discard(event.proc)
    return found


def _load_times(records: Sequence[Record]) -> list[float]:
    """From the first term of a group to the loop of its last seat."""
    begun = next((record.mono_s for record in records if isinstance(record.event, TermBegan)), None)
    first = next((record.event.began_mono_s for record in records if isinstance(record.event, StepClosed)), None)
    return [] if begun is None or first is None else [max(0.0, first - begun)]
