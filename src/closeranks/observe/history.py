"""A journal's records, sorted by what they are about: processes, seats, steps, incidents."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from closeranks.events import (
    Account,
    Category,
    CheckpointCommitted,
    IncidentClosed,
    IncidentOpened,
    NodeStarted,
    Phase,
    PhaseBegan,
    ProcessExited,
    ProcessFailed,
    ProcessJoined,
    ProcessReady,
    ProcessSeated,
    ProcessStarted,
    Record,
    RunEnded,
    RunStarted,
    SeatStalled,
    SnapshotTaken,
    StepClosed,
    StoreOpened,
    TermBegan,
)

T = TypeVar("T")

_BORN_UNWRITTEN_S = 1.0  # a process runs a little before the record of its start is written; not longer than this


class Span(NamedTuple):
    """An interval of the node's monotonic clock, seconds."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Seconds; never negative."""
        return max(0.0, self.end_s - self.begin_s)

    def cut(self, other: Span) -> Span:
        """What both have in common; of length 0 if nothing."""
        return Span(max(self.begin_s, other.begin_s), min(self.end_s, other.end_s))


class PhaseSpan(NamedTuple):
    """A phase of an incident and when it lasted."""

    incident: int
    phase: Phase
    span: Span


class Process(msgspec.Struct, kw_only=True):
    """What the journal says about one process."""

    proc: int
    born_seat: int | None
    started_s: float
    told_s: float  # of its start: it may have begun a little earlier
    node: str = ""  # on which it runs, in a job on several
    ready_s: float | None = None
    seat: int | None = None
    seated_s: float | None = None
    incarnation: int | None = None
    exited_s: float | None = None
    exit: ProcessExited | None = None
    failure: ProcessFailed | None = None
    account: Account | None = None
    stalls: list[SeatStalled] = []

    @property
    def name(self) -> str:
        """``s3.2`` once it is known to sit in a seat, else ``p7``."""
        return f"p{self.proc}" if self.incarnation is None else f"s{self.seat}.{self.incarnation}"


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """One process in one seat."""

    process: Process
    number: int  # 0: the first one in this seat
    span: Span
    last: bool  # nobody came after it


class History(msgspec.Struct, frozen=True, kw_only=True):
    """One run, from its first record to its last."""

    run: str
    span: Span
    started: RunStarted | None
    ended: RunEnded | None
    began_wall_s: float
    processes: dict[int, Process]
    stays: tuple[tuple[Stay, ...], ...]  # by seat
    steps: tuple[StepClosed, ...]  # in the order of their closing
    work: tuple[tuple[Span, Category], ...]  # steps that follow each other, as one stretch of useful or repeated work
    pauses: tuple[tuple[Span, int], ...]  # of training for snapshots, with their steps, in order
    phases: tuple[PhaseSpan, ...]  # in the order of their begin
    longest_phase_s: float
    incident_spans: dict[int, Span]
    incident_begins: tuple[float, ...]  # of these spans, sorted
    incident_seats: dict[int, tuple[int, ...]]
    library: bool  # False: a script that shows neither steps nor what its seconds were spent on
    sizes: tuple[tuple[Span, int], ...] = ()  # how many seats the group had, from term to term
    durable_step: int | None = None  # newest step in a committed checkpoint, -1 before one; None: a run without a store

    def phases_near(self, span: Span) -> list[PhaseSpan]:
        """The phases that have something in common with a span; a look at few of them in a long run."""
        first = bisect.bisect_left(self.phases, span.begin_s - self.longest_phase_s, key=_begin_s)
        until = bisect.bisect_left(self.phases, span.end_s, key=_begin_s)
        return [phase for phase in self.phases[first:until] if span.begin_s < phase.span.end_s]

    def work_near(self, span: Span) -> list[tuple[Span, Category]]:
        """The stretches of work that have something in common with a span."""
        return list(_near(self.work, span))

    def pauses_near(self, span: Span) -> list[Span]:
        """The pauses of training for snapshots that have something in common with a span."""
        return [pause for pause, _ in _near(self.pauses, span)]

    def sizes_near(self, span: Span) -> list[tuple[Span, int]]:
        """The sizes that the group had within a span."""
        return list(_near(self.sizes, span))

    def incident_began(self, after_s: float, until_s: float) -> bool:
        """Whether an incident began within this time, at its end included."""
        first = bisect.bisect_right(self.incident_begins, after_s)
        return first < len(self.incident_begins) and self.incident_begins[first] <= until_s

    @property
    def seats(self) -> int:
        """The number of seats."""
        return len(self.stays)


def _begin_s(phase: PhaseSpan) -> float:
    return phase.span.begin_s


def _near(rows: Sequence[tuple[Span, T]], span: Span) -> Iterator[tuple[Span, T]]:
    """Those of disjoint rows, in the order of time, that have something in common with a span."""
    for number in range(bisect.bisect_right(rows, span.begin_s, key=_row_end_s), len(rows)):
        if rows[number][0].begin_s >= span.end_s:
            return
        yield rows[number]


def _row_end_s(row: tuple[Span, object]) -> float:
    return row[0].end_s


class EmptyJournalError(Exception):
    """There is no record to make a history of."""


def history_of(records: Sequence[Record]) -> History:
    """Sort the records of one run.

    Raises:
        EmptyJournalError: there are none.
    """
    if not records:
        raise EmptyJournalError("the journal holds no record; the run ended before it began, or has just begun")
    started = next((r.event for r in records if isinstance(r.event, RunStarted)), None)
    ended = next((r.event for r in reversed(records) if isinstance(r.event, RunEnded)), None)
    processes = _processes(records)
    steps = tuple(sorted((r.event for r in records if isinstance(r.event, StepClosed)), key=_closed_s))
    span = Span(records[0].mono_s, max(record.mono_s for record in records))
    library = bool(steps) or _tells_of_itself(records)
    restarted_s = {} if library else _restarted_s(records)
    phases = _phases(records, span.end_s, restarted_s)
    incident_spans = _incident_spans(records, span.end_s, restarted_s)
    return History(
        run=records[0].run,
        span=span,
        started=started,
        ended=ended,
        began_wall_s=records[0].wall_s,
        processes=processes,
        stays=_stays(processes, _seat_count(started, processes), span),
        steps=steps,
        work=tuple(_work(steps)),
        pauses=tuple(_pauses(records)),
        phases=phases,
        longest_phase_s=max((phase.span.length_s for phase in phases), default=0.0),
        incident_spans=incident_spans,
        incident_begins=tuple(sorted(span.begin_s for span in incident_spans.values())),
        incident_seats={r.event.incident: r.event.seats for r in records if isinstance(r.event, IncidentOpened)},
        library=library,
        sizes=_sizes(records, span.end_s),
        durable_step=_durable_step(records),
    )


def is_of_several_nodes(records: Iterable[Record]) -> bool:
    """Whether these are records of a job that spans nodes, be it only one journal of several."""
    return any(record.stamp is not None or isinstance(record.event, NodeStarted) for record in records)


def _sizes(records: Sequence[Record], end_s: float) -> tuple[tuple[Span, int], ...]:
    terms = [(record.mono_s, len(record.event.members)) for record in records if isinstance(record.event, TermBegan)]
    ends_s = [at_s for at_s, _ in terms[1:]] + [end_s]
    return tuple((Span(at_s, until_s), seats) for (at_s, seats), until_s in zip(terms, ends_s, strict=False))


def _durable_step(records: Sequence[Record]) -> int | None:
    found: int | None = None
    for record in records:
        if isinstance(record.event, StoreOpened) and found is None:
            found = -1
        elif isinstance(record.event, CheckpointCommitted):
            found = record.event.step
    return found


def _tells_of_itself(records: Sequence[Record]) -> bool:
    return any(
        isinstance(record.event, ProcessJoined)
        or (isinstance(record.event, Account) and set(record.event.seconds) - {Category.UNKNOWN})
        for record in records
    )


def _restarted_s(records: Sequence[Record]) -> dict[int, float]:
    """When the last process was started in each incident: without steps nothing shows a recovery but that."""
    found: dict[int, float] = {}
    incident: int | None = None
    for record in records:
        if isinstance(record.event, IncidentOpened):
            incident = record.event.incident
        elif isinstance(record.event, ProcessStarted) and incident is not None:
            found[incident] = record.mono_s
    return found


def _closed_s(step: StepClosed) -> float:
    return step.closed_mono_s


def _work(steps: Sequence[StepClosed]) -> list[tuple[Span, Category]]:
    """Steps that follow each other, as one stretch of work each."""
    found: list[tuple[Span, Category]] = []
    newest = -1
    for step in steps:
        category = Category.REPEATED if step.repeated else Category.USEFUL
        # A group that went back again worked in between as little as one that did so for the first time.
        if found and found[-1][1] is category and step.step > newest:
            found[-1] = (found[-1][0]._replace(end_s=step.closed_mono_s), category)
        else:
            found.append((Span(step.began_mono_s, step.closed_mono_s), category))
        newest = step.step
    return found


def _pauses(records: Iterable[Record]) -> list[tuple[Span, int]]:
    """A snapshot is told of when its pause is over."""
    taken = ((record.mono_s, record.event) for record in records if isinstance(record.event, SnapshotTaken))
    return sorted((Span(at_s - snapshot.pause_s, at_s), snapshot.step) for at_s, snapshot in taken)


def _processes(records: Sequence[Record]) -> dict[int, Process]:
    found: dict[int, Process] = {}
    several = is_of_several_nodes(records)
    for record in records:
        event = record.event
        if isinstance(event, ProcessStarted):
            found[event.proc] = Process(
                proc=event.proc,
                born_seat=event.seat,
                seat=event.seat,
                started_s=record.mono_s,
                told_s=record.mono_s,
                node=record.node if several else "",
            )
    for record in records:
        event = record.event
        if isinstance(event, ProcessReady | ProcessSeated | ProcessFailed | ProcessExited | Account | SeatStalled):
            process = found.get(event.proc)
            if process is not None:  # else its start was in a damaged line
                _note(process, event, record.mono_s)
    for process in found.values():
        process.started_s = _born_s(process)
    return found


def _note(
    process: Process,
    event: ProcessReady | ProcessSeated | ProcessFailed | ProcessExited | Account | SeatStalled,
    mono_s: float,
) -> None:
    match event:
        case ProcessReady():
            process.ready_s = mono_s if process.ready_s is None else process.ready_s
        case ProcessSeated():
            process.seat, process.incarnation = event.seat, event.incarnation
            process.seated_s = mono_s if process.seated_s is None else process.seated_s
        case ProcessFailed():
            process.failure = event
        case ProcessExited():
            process.exit, process.exited_s = event, mono_s
        case Account():
            process.account = event
        case SeatStalled():
            process.stalls.append(event)


def _born_s(process: Process) -> float:
    """When the process began: its own account may reach back a little behind the record of its start."""
    if process.account is None:
        return process.started_s
    counted_since_s = process.account.at_mono_s - sum(process.account.seconds.values())
    early = process.started_s - _BORN_UNWRITTEN_S <= counted_since_s < process.started_s
    return counted_since_s if early else process.started_s


def _seat_count(started: RunStarted | None, processes: dict[int, Process]) -> int:
    if started is not None:
        return started.seats
    return max((process.seat + 1 for process in processes.values() if process.seat is not None), default=0)


def _stays(processes: dict[int, Process], seats: int, run: Span) -> tuple[tuple[Stay, ...], ...]:
    return tuple(_stays_of([p for p in processes.values() if p.seat == seat], run) for seat in range(seats))


def _stays_of(processes: list[Process], run: Span) -> tuple[Stay, ...]:
    """A stay ends with the process, or when the next one takes the seat: a frozen predecessor may still be dying."""
    # In the order in which they were told of: one that ended at once may seem to have begun after its successor.
    told = sorted(processes, key=lambda process: (_since_s(process, process.told_s), process.proc))
    begins = [_since_s(process, process.started_s) for process in told]
    stays = []
    for number, process in enumerate(told):
        last = number + 1 == len(told)
        next_s = run.end_s if last else begins[number + 1]
        exit_s = run.end_s if process.exited_s is None else process.exited_s
        from_s = max(begins[number], run.begin_s)
        span = Span(from_s, max(from_s, min(exit_s, next_s)))
        stays.append(Stay(process=process, number=number, span=span, last=last))
    return tuple(stays)


def _since_s(process: Process, started_s: float) -> float:
    """When it took its seat: as it started, unless it was a spare before."""
    return process.seated_s if process.born_seat is None and process.seated_s is not None else started_s


def _phases(records: Sequence[Record], end_s: float, restarted_s: Mapping[int, float]) -> tuple[PhaseSpan, ...]:
    open_phases: dict[int, PhaseBegan] = {}
    found: list[PhaseSpan] = []

    def end(incident: int, at_s: float) -> None:
        began = open_phases.pop(incident, None)
        if began is not None:
            found.append(PhaseSpan(incident, began.phase, Span(began.at_mono_s, max(began.at_mono_s, at_s))))

    for record in records:
        event = record.event
        if isinstance(event, PhaseBegan):
            end(event.incident, event.at_mono_s)
            open_phases[event.incident] = event
        elif isinstance(event, IncidentClosed):
            end(event.incident, restarted_s.get(event.incident, record.mono_s))
    for incident in tuple(open_phases):
        end(incident, restarted_s.get(incident, end_s))
    return tuple(sorted(found, key=lambda phase: phase.span))


def _incident_spans(records: Sequence[Record], end_s: float, restarted_s: Mapping[int, float]) -> dict[int, Span]:
    """From the first sign (the first phase, or the opening) to the closing or the end of the journal."""
    spans: dict[int, Span] = {}
    for record in records:
        event = record.event
        if isinstance(event, IncidentOpened):
            spans[event.incident] = Span(record.mono_s, restarted_s.get(event.incident, end_s))
        elif isinstance(event, PhaseBegan) and event.incident in spans:
            begin_s = min(spans[event.incident].begin_s, event.at_mono_s)
            spans[event.incident] = spans[event.incident]._replace(begin_s=begin_s)
        elif isinstance(event, IncidentClosed) and event.incident in spans:
            closed_s = restarted_s.get(event.incident, record.mono_s)
            spans[event.incident] = spans[event.incident]._replace(end_s=closed_s)
    return spans
