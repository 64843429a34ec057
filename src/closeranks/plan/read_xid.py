"""GPU errors from a kernel log: the Xid lines of NVIDIA's driver."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from closeranks.plan.trace import FailureRecord, TimeReader, Trace, Unparsed, make_record, require_any

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)\): (?P<code>\d+)\b")
_ISO = re.compile(r"^(?P<when>\d{4}-\d\d-\d\dT\S+)\s+(?P<host>\S+)\s+kernel:")
_SYSLOG = re.compile(r"^(?P<when>[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d)\s+(?P<host>\S+)\s+kernel:")
_BOOT = re.compile(r"^(?:<\d+>)?\[\s*(?P<when>\d+\.\d+)\]")
USER_CODES = frozenset({13, 31, 43, 45, 68, 69})
"""Xids that a user's program can cause; the others point to hardware, driver or link."""


def _moment(line: str, times: TimeReader, year: int | None, boot_utc_s: float | None) -> tuple[float, str]:
    if iso := _ISO.match(line):
        return times.utc_s(iso["when"]), iso["host"]
    if old := _SYSLOG.match(line):
        if year is None:
            message = "a time without a year: say --year"
            raise ValueError(message)
        moment = datetime.strptime(f"{year} {old['when']}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
        return moment.timestamp(), old["host"]
    if boot := _BOOT.match(line):
        return float(boot["when"]) + (boot_utc_s or 0.0), ""
    message = "no time at the start of the line"
    raise ValueError(message)


def read_xid(text: str, year: int | None = None, boot_utc_s: float | None = None) -> Trace:
    """Return every Xid line as a failure of ``host/device`` with the cause ``xid <code>``; other lines are ignored.

    Reads ``journalctl -k -o short-iso``, classic syslog (needs ``year``) and ``dmesg`` (seconds since boot, counted
    from ``boot_utc_s``). Codes that a user's program can cause are marked as ``(program)``.

    Source: NVIDIA, "XID Errors" (r570), table of codes and causes.
    """
    times = TimeReader()
    records: list[FailureRecord] = []
    unparsed: list[Unparsed] = []
    ignored = 0
    from_boot = False
    for number, line in enumerate(text.splitlines(), 1):
        found = _XID.search(line)
        if found is None:
            if "Xid" in line:
                unparsed.append(Unparsed(line=number, text=line, problem="an Xid without device and code"))
            else:
                ignored += 1
            continue
        try:
            when, host = _moment(line, times, year, boot_utc_s)
        except ValueError as error:
            unparsed.append(Unparsed(line=number, text=line, problem=str(error)))
            continue
        from_boot = from_boot or (not host and boot_utc_s is None)
        code = int(found["code"])
        cause = f"xid {code}" + (" (program)" if code in USER_CODES else "")
        unit = f"{host}/{found['device']}" if host else found["device"]
        records.append(make_record(unit=unit, start_utc_s=when, end_utc_s=None, cause=cause, domain=host))
    assumed = times.assumptions() + (("times count from boot; the date is unknown",) if from_boot else ())
    return require_any(
        Trace(
            source="Xid lines of a kernel log",
            records=tuple(records),
            unparsed=tuple(unparsed),
            assumptions=assumed,
            ignored=ignored,
        )
    )
