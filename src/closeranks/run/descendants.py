"""Ending everything that this process started, however far it went away.

Children in a session of their own, orphans and processes that fork while they are hunted are all found, because
the caller is a subreaper: whoever loses its parent becomes the caller's child. Nothing that is not a descendant is
ever touched.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_STAT_BYTES = 4096  # the kernel writes a few hundred
_PAUSE_MS = 20  # between two looks at /proc when nothing reports its end before


class Stat(NamedTuple):
    """The part of ``/proc/PID/stat`` that is needed here."""

    pid: int
    parent: int
    session: int
    state: str  # one letter; "Z" and "X" are dead
    cpu_ticks: int  # user and system time
    start_ticks: int  # since boot: with the pid it names a process for good

    @property
    def dead(self) -> bool:
        """Whether only the entry in the process table is left."""
        return self.state in "ZX"


def parse_stat(text: str) -> Stat:
    """Read one ``/proc/PID/stat``; the name in it may contain blanks and parentheses."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        pid=int(head.partition("(")[0]),
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0],
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_ticks=int(fields[19]),
    )


def read_stat(pid: int) -> Stat | None:
    """The process as it is now, None when it is gone."""
    return _read_stat(f"/proc/{pid}")


def _read_stat(folder: str) -> Stat | None:
    try:  # a machine may have thousands of these, and they are all read every few seconds: no object for each file
        fd = os.open(f"{folder}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parse_stat(os.read(fd, _STAT_BYTES).decode(errors="replace"))
        finally:
            os.close(fd)
    except (OSError, ValueError, IndexError):
        return None


def states_of_threads(pid: int) -> dict[int, str]:
    """By thread, the letter of the state that it is in; none when the process is gone."""
    try:
        threads = _numbers_in(f"/proc/{pid}/task")
    except OSError:
        return {}
    stats = (_read_stat(f"/proc/{pid}/task/{thread}") for thread in threads)
    return {stat.pid: stat.state for stat in stats if stat is not None}


def read_table() -> dict[int, Stat]:
    """All processes of this machine that we can see."""
    stats = (_read_stat(f"/proc/{name}") for name in _numbers_in("/proc"))
    return {stat.pid: stat for stat in stats if stat is not None}


def _numbers_in(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.name.isdigit()]


def descendants(root: int, table: Mapping[int, Stat]) -> tuple[Stat, ...]:
    """Everything below ``root`` in the process tree, parents before children."""
    children: dict[int, list[Stat]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat)
    found: list[Stat] = []
    pending = [root]
    while pending:
        below = children.pop(pending.pop(), [])
        found += below
        pending += [stat.pid for stat in below]
    return tuple(found)


def kill_descendants(deadline_s: float = 2.0) -> tuple[int, ...]:
    """SIGKILL every descendant of this process until none is left; returns the pids that outlived the deadline.

    The caller must be a subreaper, and must not need the exit codes of its children any more: they are reaped.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        _reap_children()
        living = [stat for stat in descendants(os.getpid(), read_table()) if not stat.dead]
        if not living or time.monotonic() >= end_s:
            _reap_children()  # those that ended since
            return tuple(stat.pid for stat in living)
        _kill_and_wait(living, min(_PAUSE_MS, max(0.0, end_s - time.monotonic()) * 1000))


def _kill_and_wait(victims: Iterable[Stat], wait_ms: float) -> None:
    with contextlib.ExitStack() as held:
        ends = select.poll()
        for victim in victims:
            try:
                pidfd = os.pidfd_open(victim.pid)
            except OSError:
                continue
            held.callback(os.close, pidfd)
            # The number may have gone to a stranger since the look; from here on the descriptor pins the process.
            now = read_stat(victim.pid)
            if now is None or now.start_ticks != victim.start_ticks:
                continue
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                ends.register(pidfd, select.POLLIN)
        ends.poll(wait_ms)


def _reap_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
