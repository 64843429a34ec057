"""Whether the supervisor that writes a journal still lives: a journal without an end does not say so itself."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Final

from closeranks.events import Record, RunStarted

_TOLERANCE_S: Final = 1.0  # a process cannot be older than its record and have begun this much after it
_START_TICKS: Final = 19  # index of the start time behind the name in /proc/PID/stat, see proc_pid_stat(5)


class Life(Enum):
    """What can be said from here. The value is a sentence about the run."""

    ALIVE = "the run goes on"
    GONE = "the run was killed: its supervisor is gone and wrote no end"
    UNKNOWN = "the journal has no end: the run goes on, or was killed"  # on another node, or not begun


def life_of(records: Iterable[Record]) -> Life:
    """Look for the process that wrote ``RunStarted``."""
    first = next((record for record in records if isinstance(record.event, RunStarted)), None)
    return Life.UNKNOWN if first is None else life_of_writer(first)


def life_of_writer(record: Record) -> Life:
    """Look for the process that wrote this record, which must be that of ``RunStarted``."""
    if not isinstance(record.event, RunStarted) or record.node != platform.node():
        return Life.UNKNOWN
    try:
        stat = Path(f"/proc/{record.event.pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return Life.GONE
    except OSError:
        return Life.UNKNOWN
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in {b"Z", b"X"}:
        return Life.GONE
    reused = _started_mono_s(int(fields[_START_TICKS])) > record.mono_s + _TOLERANCE_S
    return Life.GONE if reused else Life.ALIVE


def _started_mono_s(ticks: int) -> float:
    """The kernel counts from the boot, suspension included; CLOCK_MONOTONIC leaves suspension out."""
    suspended_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return ticks / os.sysconf("SC_CLK_TCK") - suspended_s
