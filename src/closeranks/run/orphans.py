"""The children of workers: data loaders, helpers, daemons in a session of their own.

They become the supervisor's children when their worker dies, and must die then too; those of living workers must
not. Whose child a process is can only be seen while its parent lives, so it is noted from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from closeranks.run.descendants import Stat, descendants, read_stat, read_table

_LOOKS = 100  # until the processes that were killed are gone, or hang in a device
_LOOK_S = 0.02


class Orphans:
    """Knows which worker each descendant belongs to."""

    def __init__(self) -> None:
        self._owner: dict[tuple[int, int], int] = {}  # (pid, start) to the worker's pid
        self._bereaved = False  # a worker died since the last sweep

    def note(self, workers: Collection[int]) -> None:
        """Look at the process tree: what is below which worker. Reaps orphans that have ended."""
        table = read_table()
        me = os.getpid()
        seen: dict[tuple[int, int], int] = {}
        for worker in workers:
            seen |= {(stat.pid, stat.start_ticks): worker for stat in descendants(worker, table)}
        living = {(stat.pid, stat.start_ticks) for stat in table.values()}
        kept = {key: owner for key, owner in self._owner.items() if key in living}
        self._owner = kept | seen
        _reap(stat for stat in table.values() if stat.parent == me and (stat.pid, stat.start_ticks) in self._owner)

    def sweep(self, known: Collection[int], workers: Collection[int]) -> None:
        """After a death: kill our children that are neither ``known`` nor noted as a living worker's.

        This finds what a worker put into a session of its own so shortly before it died that nobody saw it there. The
        caller makes sure that no worker is just being forked: it would be our child before anybody knows it.
        """
        if not self._bereaved:
            return
        self._bereaved = False
        table, me = read_table(), os.getpid()
        for stat in table.values():
            owner = self._owner.get((stat.pid, stat.start_ticks))
            if stat.parent == me and not stat.dead and stat.pid not in known and owner not in workers:
                self._kill_below(stat, table, owner or 0)

    def end(self, worker: int) -> None:
        """Kill what a dead worker left behind: what was noted as its own, and what is in its session."""
        self._bereaved = True
        table = read_table()
        mine = {key for key, owner in self._owner.items() if owner == worker}
        left = [stat for stat in table.values() if (stat.pid, stat.start_ticks) in mine]
        left += [stat for stat in descendants(os.getpid(), table) if stat.session == worker and stat.pid != worker]
        for stat in left:
            self._kill_below(stat, table, worker)

    def _kill_below(self, stat: Stat, table: Mapping[int, Stat], owner: int) -> None:
        self._owner[stat.pid, stat.start_ticks] = owner  # remembered, so that it is reaped
        for victim in (stat, *descendants(stat.pid, table)):
            _kill(victim)


async def end_holders(fd: int) -> bool:
    """End every process below us that has this very file open too, with all below it; whether there was one.

    For a process that was started and whose number nobody was told.
    """
    me, found = os.getpid(), False
    for _ in range(_LOOKS):
        table = read_table()
        holders = _holders(fd, descendants(me, table))
        if not holders:
            return found
        found = True
        victims = [victim for holder in holders for victim in (holder, *descendants(holder.pid, table))]
        for victim in victims:
            _kill(victim)
        await asyncio.sleep(_LOOK_S)  # of a process that is nobody's yet, nothing reports the end
        now = (read_stat(victim.pid) for victim in victims)
        began = {(victim.pid, victim.start_ticks) for victim in victims}
        _reap(stat for stat in now if stat is not None and stat.parent == me and (stat.pid, stat.start_ticks) in began)
    return found


def _holders(fd: int, among: Iterable[Stat]) -> list[Stat]:
    file = Path(f"/proc/self/fd/{fd}").readlink()
    return [stat for stat in among if _holds(stat.pid, file)]


def _holds(pid: int, file: Path) -> bool:
    try:
        links = tuple(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it is gone
        return False
    for link in links:
        with contextlib.suppress(OSError):  # closed meanwhile
            if link.readlink() == file:
                return True
    return False


def _reap(children: Iterable[Stat]) -> None:
    for child in children:
        if child.dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def _kill(victim: Stat) -> None:
    try:
        pidfd = os.pidfd_open(victim.pid)
    except OSError:
        return
    try:
        now = read_stat(victim.pid)
        if now is not None and now.start_ticks == victim.start_ticks and now.pid != os.getpid():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return
    finally:
        os.close(pidfd)
