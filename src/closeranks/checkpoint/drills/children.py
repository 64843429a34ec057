"""Forked processes of a drill: each reports through a pipe, and may be killed at any moment."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

_CHUNK_BYTES: Final = 1 << 16
_FAILED: Final = 1
_THREADS: Final = "OPENBLAS_NUM_THREADS"
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where stores do not wait for a disk; names are made by tempfile


class Child(NamedTuple):
    """A process and the pipe that it reports through."""

    pid: int
    pipe: int


class Ending(NamedTuple):
    """How a process ended, and what it had reported: whole lines of JSON."""

    killed: bool
    failed: str  # the traceback of an exception that ended it
    reports: tuple[list[object], ...]


def start(do: Callable[[int], None], closing: tuple[int, ...] = ()) -> Child:
    """Fork a process that runs ``do`` with the pipe to report through. ``closing``: descriptors that are not its own.

    The caller has one thread: a fork beside others may wait for ever on what they hold.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return Child(pid, read)
    status = _FAILED
    try:
        for fd in (read, *closing):
            os.close(fd)
        do(write)
        status = 0
    except BaseException:
        report(write, ["failed", traceback.format_exc()[-_CHUNK_BYTES // 32 :]])
    finally:
        os._exit(status)


def report(pipe: int, values: list[object]) -> None:
    """One line of JSON by one call, so that it is there whole or not at all."""
    os.write(pipe, msgspec.json.encode(values) + b"\n")


def kill(child: Child, after_s: float) -> bool:
    """End it by SIGKILL after this time. False: it had ended by itself before."""
    poller = select.poll()
    pidfd = os.pidfd_open(child.pid)
    try:
        poller.register(pidfd, select.POLLIN)
        if poller.poll(after_s * 1000):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return True
    finally:
        os.close(pidfd)


def ending(child: Child) -> Ending:
    """Wait until the process has ended."""
    data = b""
    while more := os.read(child.pipe, _CHUNK_BYTES):
        data += more
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    lines = [line for line in data.split(b"\n") if line]
    reports = tuple(msgspec.json.decode(line, type=list[object]) for line in lines)
    failed = next((str(one[1]) for one in reports if one[0] == "failed"), "")
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return Ending(killed, failed or _unknown(status, killed), tuple(one for one in reports if one[0] != "failed"))


def alone() -> None:
    """Begin anew, if need be, in a process where numpy starts no threads: a fork beside them may hang."""
    if os.environ.get(_THREADS) != "1":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _THREADS: "1"})  # noqa: S606


def _unknown(status: int, killed: bool) -> str:
    return "" if killed or status == 0 else f"it ended with status {status}"
