"""A run of ours as evidence: its journal, and what the processes of its last incident printed.

A run may have met and mended many faults. The one that is asked about is the incident that ended it, or else the
newest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from closeranks import faults
from closeranks.diagnose.evidence import Evidence, Place, Source, Standing, Unit
from closeranks.diagnose.labels import harmless, read
from closeranks.diagnose.lexicon import TEXT_CHARS_MAX, ending
from closeranks.events import (
    Diagnosed,
    IncidentClosed,
    IncidentOpened,
    NodeUnwell,
    ProcessExited,
    ProcessFailed,
    ProcessSeated,
    ProcessStarted,
    Record,
)
from closeranks.gather.rulebook import lexicon
from closeranks.gather.sources import LogFile, logs_in
from closeranks.journal import JOURNAL_NAME
from closeranks.journal import read as read_journal

_BEFORE_S = 10.0  # ends come before the incident that they open
_CRASH_WEIGHT, _EXIT_WEIGHT = 0.7, 0.55
_SIGNALLED = 128
# What the controller infers from an end alone; the end itself is evidence already, and its output is better.
_FROM_ENDS = frozenset({faults.KILLED.name, faults.NATIVE_CRASH.name, faults.CRASHED.name, faults.START_UP_CRASH.name})


class RunError(Exception):
    """The journal of a run cannot be read."""


class IncidentEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal says of an incident, and which logs belong to it."""

    evidence: tuple[Evidence, ...]
    logs: tuple[LogFile, ...]
    problems: tuple[str, ...]


def last_incident(folder: Path) -> IncidentEvidence:
    """The incident that ended the run, or its newest one; without any, all that its processes printed.

    Raises:
        RunError: the journal cannot be read.
    """
    path = folder / JOURNAL_NAME
    try:
        reading = read_journal(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    number, records = _of_last_incident(reading.records)
    seats = _seats(reading.records)
    problems = tuple(f"{path}: line {damage.line} is damaged" for damage in reading.damaged)
    ends = {
        record.event.proc: record.wall_s
        for record in records
        if isinstance(record.event, (ProcessExited, ProcessFailed)) and not getattr(record.event, "asked", False)
    }
    chosen = list(ends) if number is not None else list(seats)
    logs = [file for proc in chosen for file in _logs_of(folder, proc, seats.get(proc), ends.get(proc))]
    place = harmless(str(path))
    evidence = [found for record in records if (found := _evidence(record, number, place)) is not None]
    return IncidentEvidence(evidence=tuple(evidence), logs=tuple(logs), problems=problems)


def _of_last_incident(records: Sequence[Record]) -> tuple[int | None, Sequence[Record]]:
    opened = {record.event.incident: record for record in records if isinstance(record.event, IncidentOpened)}
    if not opened:
        return None, records
    number = max(opened)
    since_s = opened[number].wall_s - _BEFORE_S
    earlier_s = max(
        (r.wall_s for r in records if isinstance(r.event, IncidentClosed) and r.event.incident != number), default=0.0
    )
    return number, [record for record in records if record.wall_s >= max(since_s, earlier_s)]


def _seats(records: Sequence[Record]) -> dict[int, int | None]:
    seats: dict[int, int | None] = {}
    for record in records:
        if isinstance(record.event, (ProcessStarted, ProcessSeated)):
            seats[record.event.proc] = record.event.seat
    return seats


def _logs_of(folder: Path, proc: int, seat: int | None, ended_s: float | None) -> list[LogFile]:
    paths = [path for name in ("out", "err") if (path := folder / "logs" / f"p{proc}.{name}").is_file()]
    files = logs_in(paths) if paths else []
    return [
        LogFile(file.path, msgspec.structs.replace(file.origin, rank=seat, ended_s=ended_s), file.size_bytes)
        for file in files
    ]


def _evidence(record: Record, incident: int | None, file: str) -> Evidence | None:
    place = Place(file=file, line=record.seq + 1)
    match record.event:
        case ProcessFailed() as failed:
            line = f"{failed.error}: {failed.message}"
            known = lexicon().book.match(read(harmless(line), 1970).text)
            return Evidence(
                source=Source.JOURNAL,
                rule="exception",
                text=harmless(line)[:TEXT_CHARS_MAX],
                place=place,
                standing=Standing.GENERAL if known is None else known.rule.standing,
                fault=faults.CRASHED.name if known is None else known.rule.fault,
                weight=_CRASH_WEIGHT if known is None else known.rule.weight,
                unit=Unit(rank=failed.seat),
                at_s=record.wall_s,
                order=record.seq,
                where=harmless(failed.where),
            )
        case ProcessExited() as exited if not exited.asked and exited.code != 0:
            code = exited.code if exited.signal is None else _SIGNALLED + exited.signal
            fault, weight = ending(code, _EXIT_WEIGHT)
            how = f"exit code {exited.code}" if exited.signal is None else f"signal {exited.signal}"
            return Evidence(
                source=Source.JOURNAL,
                rule="exit",
                text=f"the process of seat {exited.seat} ended with {how}",
                place=place,
                standing=Standing.ENDING,
                fault=fault,
                weight=weight,
                unit=Unit(rank=exited.seat),
                at_s=record.wall_s,
                order=record.seq,
                code=code,
            )
        case NodeUnwell() as unwell:
            return Evidence(
                source=Source.TELEMETRY,
                rule=harmless(unwell.sign),
                text=harmless(unwell.detail)[:TEXT_CHARS_MAX],
                place=place,
                standing=Standing.CONTEXT,
                unit=Unit(node=harmless(record.node)),
                at_s=record.wall_s,
                order=record.seq,
            )
        case Diagnosed() as found if found.incident == incident and found.fault not in _FROM_ENDS:
            known_fault = found.fault if found.fault in faults.CATALOGUE else ""
            return Evidence(
                source=Source.JOURNAL,
                rule="controller",
                text=harmless("; ".join(found.evidence))[:TEXT_CHARS_MAX],
                place=place,
                standing=Standing.SPECIFIC if known_fault not in ("", faults.UNKNOWN.name) else Standing.CONTEXT,
                fault="" if known_fault == faults.UNKNOWN.name else known_fault,
                weight=found.confidence,
                unit=Unit(rank=found.culprits[0]) if len(found.culprits) == 1 else Unit(),
                at_s=record.wall_s,
                order=record.seq,
            )
    return None
