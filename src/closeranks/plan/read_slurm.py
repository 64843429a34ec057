"""Job failures from Slurm's accounting: ``sacct -P -o JobID,State,Start,End,ElapsedRaw,NNodes,NodeList``."""

from __future__ import annotations

import csv

from closeranks.plan.checks import PlanInputError
from closeranks.plan.trace import FailureRecord, TimeReader, Trace, Unparsed, Watch, make_record, require_any

FAILED_STATES = ("NODE_FAIL", "BOOT_FAIL", "FAILED", "OUT_OF_MEMORY")
OTHER_STATES = (
    "CANCELLED",
    "COMPLETED",
    "COMPLETING",
    "DEADLINE",
    "PENDING",
    "PREEMPTED",
    "REQUEUED",
    "REVOKED",
    "RUNNING",
    "SUSPENDED",
    "TIMEOUT",
)
_NEEDED = ("JobID", "State", "Start", "End")


def read_slurm(text: str, utc_offset_h: float = 0.0) -> Trace:
    """Return failed jobs as failures and every job that ran as a watch over its time.

    Steps (``123.batch``) are part of their job and skipped. A unit is a job, so rates are per job-hour; the cause is
    the state. Times are local to the cluster: give its ``utc_offset_h``.

    Source: Slurm sacct manual, "JOB STATE CODES".
    """
    reader = csv.DictReader(text.splitlines(), delimiter="|")
    missing = [name for name in _NEEDED if name not in (reader.fieldnames or [])]
    if missing:
        way_out = "run sacct -P -o JobID,State,Start,End,ElapsedRaw,NNodes,NodeList"
        raise PlanInputError("header", f"columns {', '.join(_NEEDED)}", f"no {', '.join(missing)}", way_out)
    times = TimeReader(utc_offset_h=utc_offset_h)
    records: list[FailureRecord] = []
    watches: list[Watch] = []
    unparsed: list[Unparsed] = []
    ignored = 0
    for row in reader:
        state = (row["State"] or "").split()[0] if row["State"] else ""
        if "." in row["JobID"] or state in {"PENDING", "RUNNING"} or row["Start"] in {"Unknown", "None"}:
            ignored += 1
            continue
        try:
            if state not in FAILED_STATES and state not in OTHER_STATES:
                message = f"state {state!r} is not one of Slurm's"
                raise ValueError(message)  # noqa: TRY301 - the row joins the others that cannot be read
            begun, ended = times.utc_s(row["Start"]), times.utc_s(row["End"])
            failed = state in FAILED_STATES
            if failed:
                nodes = row.get("NodeList") or ""
                records.append(
                    make_record(unit=row["JobID"], start_utc_s=ended, end_utc_s=None, cause=state, domain=nodes)
                )
            if ended < begun:
                message = "ended before it started"
                raise ValueError(message)  # noqa: TRY301 - as above
            watches.append(Watch(unit=row["JobID"], from_utc_s=begun, to_utc_s=ended, failed=failed))
        except (ValueError, TypeError) as error:
            text_of = "|".join(str(value) for value in row.values())
            unparsed.append(Unparsed(line=reader.line_num, text=text_of, problem=str(error)))
    return require_any(
        Trace(
            source="Slurm accounting",
            records=tuple(records),
            watches=tuple(watches),
            unparsed=tuple(unparsed),
            assumptions=times.assumptions(),
            ignored=ignored,
        )
    )
