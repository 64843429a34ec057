"""Failures from this package's own journals: incidents with their diagnosis and length."""

from __future__ import annotations

import msgspec

from closeranks import events
from closeranks.plan.trace import FailureRecord, Trace, Unparsed, Watch, require_any


def read_journal(text: str) -> Trace:
    """Return incidents as failures of the job, from opening to the first new step, with the diagnosed fault as cause.

    The job is the unit and was watched from the first to the last record of each run; incidents of injected faults
    are ignored, as a drill says nothing about a rate. One JSON record a line.

    Source: ``closeranks.events``, the journal's schema.
    """
    opened: dict[tuple[str, int], events.Record] = {}
    causes: dict[tuple[str, int], str] = {}
    closed: dict[tuple[str, int], float] = {}
    drilled: set[str] = set()
    spans: dict[str, tuple[float, float]] = {}
    unparsed: list[Unparsed] = []
    decoder = msgspec.json.Decoder(events.Record)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except msgspec.DecodeError as error:
            unparsed.append(Unparsed(line=number, text=line[:200], problem=str(error)))
            continue
        first, last = spans.get(record.run, (record.wall_s, record.wall_s))
        spans[record.run] = (min(first, record.wall_s), max(last, record.wall_s))
        event = record.event
        if isinstance(event, events.IncidentOpened):
            opened.setdefault((record.run, event.incident), record)
        elif isinstance(event, events.Diagnosed):
            causes[record.run, event.incident] = event.fault
        elif isinstance(event, events.IncidentClosed):
            closed[record.run, event.incident] = record.wall_s
        elif isinstance(event, events.FaultInjected):
            drilled.add(record.run)
    real = {key: record for key, record in opened.items() if record.run not in drilled}
    records = tuple(
        FailureRecord(
            unit=record.run,
            start_utc_s=record.wall_s,
            end_utc_s=closed.get(key),
            cause=causes.get(key, "unknown"),
            domain=record.node,
        )
        for key, record in real.items()
    )
    watches = tuple(
        Watch(unit=run, from_utc_s=first, to_utc_s=last) for run, (first, last) in spans.items() if run not in drilled
    )
    skipped = len(opened) - len(real)
    note = (f"runs with injected faults were left out: {', '.join(sorted(drilled))}",) if drilled else ()
    return require_any(
        Trace(
            source="closeranks journal",
            records=records,
            watches=watches,
            unparsed=tuple(unparsed),
            assumptions=note,
            ignored=skipped + len(drilled),
        )
    )
