"""Starting workers: forked from the zygote where that is possible, spawned where it is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from closeranks.run.birth import CONTROL, STDERR, STDOUT, Birth
from closeranks.run.options import Target
from closeranks.run.orphans import end_holders
from closeranks.run.zygote import Reply

_REPLY_S = 10.0  # a fork takes milliseconds; a zygote that is silent for longer is lost
_READY_S = 120.0  # importing torch on a busy machine
_REPLY_BYTES = 4096


class Started(NamedTuple):
    """A worker as the kernel knows it. Whoever holds it closes ``pidfd``."""

    pid: int
    pidfd: int
    how: str  # "fork" or "spawn"


class Ended(NamedTuple):
    """How a process ended: exactly one of the two is set."""

    code: int | None
    signal: int | None


def reap(pidfd: int) -> Ended | None:
    """Take the exit status of a child; None while it lives."""
    status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    if status is None:
        return None
    if status.si_code == os.CLD_EXITED:
        return Ended(status.si_status, None)
    return Ended(None, status.si_status)


class _Zygote:
    """Our end of a zygote: one request at a time, an answer to each."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        link.setblocking(False)
        self.pid = pid
        self.link = link

    async def ready(self) -> bool:
        """Wait for the first word of a zygote that is still importing."""
        return not (await self._receive(_READY_S)).problem

    async def fork(self, fds: list[int]) -> int:
        """The pid of a new worker.

        Raises:
            OSError: the zygote is gone or refused.
        """
        socket.send_fds(self.link, [b"f"], fds)
        reply = await self._receive()
        if reply.problem:
            raise OSError(reply.problem)
        return reply.pid

    async def _receive(self, within_s: float = _REPLY_S) -> Reply:
        loop = asyncio.get_running_loop()
        data = await asyncio.wait_for(loop.sock_recv(self.link, _REPLY_BYTES), within_s)
        return msgspec.msgpack.decode(data, type=Reply) if data else Reply(problem="the zygote is gone")

    def close(self) -> None:
        """End it: a zygote leaves when its socket closes; one that hangs is killed."""
        self.link.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class Starter:
    """Starts workers. Without a zygote (``None``) it spawns each."""

    def __init__(self, zygote: tuple[int, socket.socket] | None, *, renew: bool = True) -> None:
        self._zygote = None if zygote is None else _Zygote(*zygote)
        self._coming: _Zygote | None = None
        self._renew = renew and zygote is not None
        self._one_at_a_time = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None

    @property
    def zygote_pids(self) -> set[int]:
        """The zygote and one that is still importing, where there are any."""
        return {zygote.pid for zygote in (self._zygote, self._coming) if zygote is not None}

    @property
    def forking(self) -> bool:
        """Whether a worker may exist that nobody has been told of yet."""
        return self._one_at_a_time.locked()

    async def start(self, birth: Birth, fds: tuple[int, ...]) -> Started:
        """Start a worker with these descriptors, which stay the caller's to close.

        Raises:
            OSError: neither a fork nor a spawn was possible, or the zygote did not say what it had forked; no process
                is left.
        """
        if self._zygote is not None and birth.kind is not Target.COMMAND:
            async with self._one_at_a_time:
                started = await self._fork(birth, fds)
            if started is not None:
                return started
        return self._spawn(birth, fds)

    async def _fork(self, birth: Birth, fds: tuple[int, ...]) -> Started | None:
        zygote = self._zygote
        if zygote is None:  # it was lost while we waited for our turn
            return None
        birth_fd = _write_birth(birth)
        try:
            pid = await zygote.fork([birth_fd, *fds])
            return Started(pid, os.pidfd_open(pid), "fork")
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            self._zygote = None
            zygote.close()
            if self._renew:
                self._renewal = asyncio.get_running_loop().create_task(self._replace_zygote())
            if await end_holders(fds[CONTROL]):  # it may have begun to use what a second one would be given too
                raise OSError("the zygote was lost without a word of the worker that it had forked") from error
            return None
        finally:
            os.close(birth_fd)

    async def _replace_zygote(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                child = _popen("zygote", [theirs.fileno(), os.getpid()], [theirs.fileno()])
        except OSError:
            ours.close()
            return
        zygote = self._coming = _Zygote(child.pid, ours)
        child.returncode = 0  # _Zygote waits for it, Popen's destructor shall not warn
        ready = False
        try:
            ready = await zygote.ready()
        except (OSError, TimeoutError, msgspec.MsgspecError):
            return  # workers go on being spawned
        finally:
            self._coming = None
            if ready:
                self._zygote = zygote
            else:
                zygote.close()

    def _spawn(self, birth: Birth, fds: tuple[int, ...]) -> Started:
        birth_fd = _write_birth(birth)
        try:
            arguments = [birth_fd, *fds]
            child = _popen("worker_main", arguments, arguments, fds)
            try:
                pidfd = os.pidfd_open(child.pid)
            except OSError:
                child.kill()
                child.wait()
                raise
            child.returncode = 0  # the supervisor waits for it by pidfd
            return Started(child.pid, pidfd, "spawn")
        finally:
            os.close(birth_fd)

    def close(self) -> None:
        """End the zygote; workers are not touched."""
        if self._renewal is not None:
            self._renewal.cancel()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


def _popen(
    module: str, arguments: Iterable[int], pass_fds: Iterable[int], fds: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", f"closeranks.run.{module}", *map(str, arguments)]
    return subprocess.Popen(
        command,
        pass_fds=tuple(pass_fds),
        stdin=subprocess.DEVNULL,
        stdout=fds[STDOUT] if fds else None,
        stderr=fds[STDERR] if fds else None,
        start_new_session=True,
    )


def _write_birth(birth: Birth) -> int:
    # A memory file and not the message itself: an environment may be larger than a packet.
    fd = os.memfd_create("closeranks-birth")
    os.write(fd, msgspec.msgpack.encode(birth))
    return fd
