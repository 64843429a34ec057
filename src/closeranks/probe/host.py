"""What the kernel tells of this machine: pressure on memory and processors, room on disks, and its clocks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from closeranks.probe.memory import available_bytes
from closeranks.probe.outcome import Absent, Outcome, Passed, Scarce, Unknown

_PRESSURE: Final = Path("/proc/pressure")
_SNMP: Final = Path("/proc/self/net/snmp")  # of this network namespace
_FULL_SHARE: Final = 0.10  # of the last ten seconds in which no task could go on for want of memory
_FREE_BYTES_LOW: Final = 2**30


def pressure(resource: str, kind: str) -> float | None:
    """The share of the last ten seconds in which ``some`` or ``full`` (all) tasks waited for it; None: not told.

    Source: Linux, Documentation/accounting/psi.rst.
    """
    try:
        lines = (_PRESSURE / resource).read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return parse_pressure(lines, kind)


def parse_pressure(lines: list[str], kind: str) -> float | None:
    """``avg10`` of one line of a pressure file, as a share; None where it is not there."""
    for line in lines:
        head, *pairs = line.split()
        if head == kind:
            values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            try:
                return float(values["avg10"]) / 100
            except (KeyError, ValueError):
                return None
    return None


def check_memory_pressure() -> Outcome:
    """Whether tasks stand still for want of memory."""
    share = pressure("memory", "full")
    if share is None:
        return Absent("this kernel does not tell pressure (PSI)")
    if share > _FULL_SHARE:
        return Scarce(f"for {share:.0%} of the last ten seconds nothing could run for want of memory")
    return Passed(f"memory stalls everything for {share:.1%} of the time")


def check_room(folder: Path) -> Outcome:
    """Whether the file system of ``folder`` has room."""
    free = free_bytes(folder)
    if free is None:
        return Unknown(f"{folder}: its room cannot be asked for")
    if free < _FREE_BYTES_LOW:
        return Scarce(f"{folder} has {free / 2**20:.0f} MiB left")
    return Passed(f"{folder} has {free / 2**30:.1f} GiB left")


def free_bytes(folder: Path) -> int | None:
    """What this user may still write there; None where that cannot be asked."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def parse_segments(lines: list[str]) -> tuple[int, int] | None:
    """TCP segments sent, and sent again, since the machine began; None where it is not told.

    Source: RFC 4022, tcpOutSegs and tcpRetransSegs, from the lines of /proc/net/snmp.
    """
    rows = [line.split() for line in lines if line.startswith("Tcp:")]
    try:
        names, values = rows
        told = dict(zip(names, values, strict=True))
        return int(told["OutSegs"]), int(told["RetransSegs"])
    except (KeyError, ValueError):
        return None


def _segments() -> dict[str, float | None]:
    try:
        found = parse_segments(_SNMP.read_text(encoding="ascii").splitlines())
    except OSError:
        found = None
    sent, again = found or (None, None)
    return {"segments sent": sent, "segments sent again": again}


def host_sample(folder: Path) -> dict[str, float | None]:
    """One look at the machine, by the names of ``detect/telemetry.py``."""
    return {
        "memory stalled": pressure("memory", "full"),
        "memory available": available_bytes(),
        "disk free": free_bytes(folder),
        **_segments(),
        # Of no use as a time, but it changes only when somebody sets the clock: both are read within microseconds.
        "clock offset": time.time() - time.monotonic(),
    }
