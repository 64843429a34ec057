"""The processes of a drilled node, found by a mark in the environment that they were started with.

Parents die, sessions are left and orphans go to whoever adopts them, but the environment of a process stays what it
was at its start, and its children begin with it. So "all processes of this node" means the same before and after any
of them was killed. Nothing that does not carry the mark is ever touched.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from closeranks.run.descendants import read_stat

MARK: Final = "CLOSERANKS_DRILLED_NODE"
_ROUNDS = 50  # of looking again for what was forked meanwhile
_GONE_S = 10.0


def marked(mark: str) -> list[int]:
    """Living processes that carry exactly this mark."""
    return _carrying(f"{MARK}={mark}".encode().__eq__)


def marked_below(prefix: str) -> dict[int, str]:
    """Living processes whose mark begins with ``prefix``, and their marks."""
    begun = f"{MARK}={prefix}".encode()
    found = {pid: _mark_of(pid) for pid in _carrying(lambda entry: entry.startswith(begun))}
    return {pid: mark for pid, mark in found.items() if mark}


def bears(pid: int, mark: str) -> bool:
    """Whether the process carries exactly this mark."""
    return _mark_of(pid) == mark


def signal_all(mark: str, number: signal.Signals) -> None:
    """Send a signal to every process of the mark, once."""
    for pid in marked(mark):
        _send(pid, mark, number)


def freeze(mark: str) -> None:
    """SIGSTOP until no process is left that was not stopped: what was forked meanwhile is stopped, too."""
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = set(marked(mark)) - stopped
        if not fresh:
            return
        for pid in fresh:
            _send(pid, mark, signal.SIGSTOP)
        stopped |= fresh
    raise RuntimeError(f"{mark}: forks faster than it can be stopped, {len(stopped)} processes were")


def thaw(mark: str) -> None:
    """Let what was frozen go on."""
    signal_all(mark, signal.SIGCONT)


def kill(mark: str) -> None:
    """End every process at one instant, as far as anybody outside can see, and wait until they are gone.

    They are stopped first: otherwise those that die last would see the death of the others and act on it.
    """
    freeze(mark)
    victims = marked(mark)
    with contextlib.ExitStack() as held:
        ends, living = select.poll(), 0
        for pid in victims:
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(pid)
                held.callback(os.close, pidfd)
                ends.register(pidfd, select.POLLIN)
                living += 1
        for pid in victims:
            _send(pid, mark, signal.SIGKILL)
        while living and (ended := ends.poll(_GONE_S * 1000)):
            for fd, _event in ended:
                ends.unregister(fd)
            living -= len(ended)


def _send(pid: int, mark: str, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if bears(pid, mark):  # the descriptor pins the process: its number cannot have gone to a stranger
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _mark_of(pid: int) -> str:
    begun = f"{MARK}=".encode()
    entries = [entry for entry in _environment(pid) if entry.startswith(begun)]
    return os.fsdecode(entries[0].removeprefix(begun)) if entries else ""


def _carrying(is_it: Callable[[bytes], bool]) -> list[int]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    found = [pid for pid in pids if any(is_it(entry) for entry in _environment(pid))]
    stats = ((pid, read_stat(pid)) for pid in found)
    return sorted(pid for pid, stat in stats if stat is not None and not stat.dead)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or somebody else's
        return []
