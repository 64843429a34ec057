"""Failure records from comma-separated text, with mapped columns and presets for public traces."""

from __future__ import annotations

import csv
from difflib import get_close_matches
from typing import Final

import msgspec

from closeranks.plan.checks import PlanInputError
from closeranks.plan.trace import FailureRecord, TimeReader, Trace, Unparsed, Watch, make_record, require_any

_NAMES_START = ("start", "started", "begin", "time", "timestamp", "date", "failure_time", "prob started")
_NAMES_END = ("end", "fixed", "finished", "repaired", "resolved", "prob fixed")
_NAMES_UNIT = ("unit", "node", "host", "hostname", "gpu", "machine", "nodenum")
_NAMES_CAUSE = ("cause", "category", "reason", "type", "component")
_NAMES_DOMAIN = ("domain", "rack", "system", "cluster")


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """Which column holds what. ``select`` keeps rows whose column equals a value."""

    start: str
    end: str | None = None
    unit: str | None = None
    cause: str | None = None
    domain: str | None = None
    select: tuple[tuple[str, str], ...] = ()
    time_form: str | None = None
    utc_offset_h: float = 0.0


def _find(header: list[str], candidates: tuple[str, ...]) -> str | None:
    lower = {name.strip().lower(): name for name in header}
    return next((lower[name] for name in candidates if name in lower), None)


def guess_columns(header: list[str], **given: str) -> Columns:
    """Return the columns by their usual names, with those that were ``given`` taken as they are.

    Raises:
        PlanInputError: a given column does not exist (with the nearest that does), or none looks like a start.

    Source: own list of names.

    """
    for role, name in given.items():
        if name not in header:
            near = get_close_matches(name, header, n=1, cutoff=0.0)
            way_out = f"did you mean {near[0]!r}?" if near else "the file has no header"
            option = f"--column {role}"
            raise PlanInputError(option, f"one of {', '.join(header)}", repr(name), way_out)
    start = given.get("start") or _find(header, _NAMES_START)
    if start is None:
        way_out = "say --column start=NAME"
        raise PlanInputError("header", "a column of failure times", ", ".join(header), way_out)
    return Columns(
        start=start,
        end=given.get("end") or _find(header, _NAMES_END),
        unit=given.get("unit") or _find(header, _NAMES_UNIT),
        cause=given.get("cause") or _find(header, _NAMES_CAUSE),
        domain=given.get("domain") or _find(header, _NAMES_DOMAIN),
    )


def _rows(text: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    reader = csv.reader(text.splitlines())
    try:
        header = next(reader)
    except StopIteration:
        raise PlanInputError("file", "a header line", "an empty file", "give a file with rows") from None
    return header, [(reader.line_num, row) for row in reader if row]


def read_columns(text: str, columns: Columns | None = None, source: str = "csv", **given: str) -> Trace:
    """Return every row as a failure; rows that cannot be read are listed with their line.

    Source: RFC 4180.
    """
    header, rows = _rows(text)
    chosen = columns or guess_columns(header, **given)
    place = {name: header.index(name) for name in header}
    times = TimeReader(chosen.time_form, chosen.utc_offset_h)
    records: list[FailureRecord] = []
    unparsed: list[Unparsed] = []
    ignored = 0

    def cell(row: list[str], name: str | None) -> str:
        return row[place[name]].strip() if name is not None else ""

    for line, row in rows:
        if len(row) != len(header):
            problem = f"{len(row)} cells under {len(header)} columns"
            unparsed.append(Unparsed(line=line, text=",".join(row), problem=problem))
            continue
        if any(cell(row, name) != value for name, value in chosen.select):
            ignored += 1
            continue
        try:
            end = cell(row, chosen.end)
            records.append(
                make_record(
                    unit=cell(row, chosen.unit),
                    start_utc_s=times.utc_s(cell(row, chosen.start)),
                    end_utc_s=times.utc_s(end) if end else None,
                    cause=cell(row, chosen.cause),
                    domain=cell(row, chosen.domain),
                )
            )
        except ValueError as error:
            unparsed.append(Unparsed(line=line, text=",".join(row), problem=str(error)))
    return require_any(
        Trace(
            source=source,
            records=tuple(records),
            unparsed=tuple(unparsed),
            assumptions=times.assumptions(),
            ignored=ignored,
        )
    )


LANL_CAUSES: Final = ("Facilities", "Hardware", "Human Error", "Network", "Undetermined", "Software")


def read_lanl(text: str, system: str | None = None) -> Trace:
    """Return the Los Alamos failures of 1996 to 2005, of one ``system`` or of all.

    The cause is the column that is filled; a unit is ``system/node``. Cells beyond the last column (unquoted commas)
    make a row unparsable.

    Source: LA-UR-05-7318, record layout of its README; Schroeder and Gibson 2006.
    """
    header, rows = _rows(text)
    place = {name: header.index(name) for name in ("System", "nodenumz", "Prob Started", "Prob Fixed", *LANL_CAUSES)}
    times = TimeReader("%m/%d/%Y %H:%M")
    records: list[FailureRecord] = []
    unparsed: list[Unparsed] = []
    ignored = 0
    for line, row in rows:
        if system is not None and row[0] != system:
            ignored += 1
            continue
        if len(row) != len(header):
            problem = f"{len(row)} cells under {len(header)} columns"
            unparsed.append(Unparsed(line=line, text=",".join(row), problem=problem))
            continue
        cause = next((name for name in LANL_CAUSES if row[place[name]].strip()), "unknown")
        try:
            fixed = row[place["Prob Fixed"]]
            records.append(
                make_record(
                    unit=f"{row[0]}/{row[place['nodenumz']]}",
                    start_utc_s=times.utc_s(row[place["Prob Started"]]),
                    end_utc_s=times.utc_s(fixed) if fixed else None,
                    cause="unknown" if cause == "Undetermined" else cause,
                    domain=row[0],
                )
            )
        except ValueError as error:
            unparsed.append(Unparsed(line=line, text=",".join(row), problem=str(error)))
    name = "LANL 1996-2005" + (f", system {system}" if system else "")
    return require_any(
        Trace(
            source=name,
            records=tuple(records),
            unparsed=tuple(unparsed),
            assumptions=times.assumptions(),
            ignored=ignored,
        )
    )


def read_titan(text: str) -> Trace:
    """Return service lives of GPUs (insert, remove, event) as watches and failures, as published for Titan.

    A life that ends with an event (DBE, OTB) failed; any other was censored by removal or by the end of the data.
    A row with an event but no insert is a further failure within a life: it counts, without exposure of its own.

    Source: Ostrouchov et al. 2020 (SC20), gc_full.csv.
    """
    header, rows = _rows(text)
    place = {name: header.index(name) for name in ("SN", "location", "insert", "remove", "event")}
    times = TimeReader()
    records: list[FailureRecord] = []
    watches: list[Watch] = []
    unparsed: list[Unparsed] = []
    again = 0
    for line, row in rows:
        try:
            event, ended = row[place["event"]].strip(), times.utc_s(row[place["remove"]])
            within = bool(event) and not row[place["insert"]]
            begun = ended if within else times.utc_s(row[place["insert"]])
        except (ValueError, IndexError) as error:
            unparsed.append(Unparsed(line=line, text=",".join(row), problem=str(error)))
            continue
        if ended < begun:
            unparsed.append(Unparsed(line=line, text=",".join(row), problem="removed before it was inserted"))
            continue
        unit = row[place["SN"]]
        if within:
            again += 1
        else:
            watches.append(Watch(unit=unit, from_utc_s=begun, to_utc_s=ended, failed=bool(event)))
        if event:
            cabinet = row[place["location"]].split("c", 2)[1] if row[place["location"]] else ""
            record = make_record(unit=unit, start_utc_s=ended, end_utc_s=None, cause=event, domain=f"c{cabinet}")
            records.append(record)
    repeats = (f"{again} events without an insert time count as further failures of a life",) if again else ()
    return require_any(
        Trace(
            source="Titan-like service lives",
            records=tuple(records),
            watches=tuple(watches),
            unparsed=tuple(unparsed),
            assumptions=times.assumptions() + repeats,
        )
    )
