"""The candidate of this node: started by the supervisor, listened to, and replaced when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from closeranks.cluster import aside
from closeranks.run.context import Context
from closeranks.run.links import Link

_AGAIN_S: Final = 1.0  # to the next start, when there was none to take over


class _Process:
    """One candidate process, and our end of its socket."""

    def __init__(self, folder: Path, on_aside: Callable[[Any], None], on_ended: Callable[[_Process], None]) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, (folder / "logs" / "candidate.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "closeranks.cluster.candidate"),
                    *(str(folder), str(theirs.fileno()), str(os.getpid())),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._socket = ours
        self._link = Link(ours, on_aside, lambda _reason: on_ended(self), aside.FromCandidate)
        self._link.on_closed = lambda: on_ended(self)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def send(self, word: aside.FromSupervisor) -> None:
        """Tell it."""
        self._link.send(word)

    def wait(self, within_s: float) -> None:
        """Blocks until it has ended, or not any longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)

    def end(self) -> None:
        """It has certainly ended when this returns."""
        self._link.close()
        self._socket.close()
        self._process.kill()
        self._process.wait()


class CandidateLink:
    """The candidate of this node, and one more that waits to take its place. ``on_aside`` hears what it says."""

    def __init__(self, context: Context, boot: str, on_aside: Callable[[Any], None]) -> None:
        self._context = context
        self._boot = boot
        self._on_aside = on_aside
        self._active: _Process | None = None
        self._waiting: _Process | None = None
        self._ends = 0
        self._follows = 0
        self.probe_port = 0  # of the supervisor
        self._closed = False
        self._seeks = True
        self.replace = True  # False: without an authority there must not be a second one
        self.on_lost: Callable[[], None] = lambda: None  # it ended, and there will be no other

    def start(self) -> None:
        """Start one, and the one that waits."""
        self._promote(self._new())

    def stand(self, follows: int) -> None:
        """Which epoch this node hears; told when it changes."""
        if follows != self._follows:
            self._follows = follows
            if self._active is not None:
                self._active.send(aside.Standing(follows=follows))

    def retire(self) -> None:
        """This node is to leave: nobody leads from here any more, but who leads is still heard."""
        self._seeks = False
        if self._active is not None:
            self._active.send(aside.Retire())

    async def finish(self, within_s: float) -> None:
        """The run is over here: a candidate that leads sees to the other nodes first."""
        self._closed = True
        if self._active is not None:
            self._active.send(aside.Ending())
            await asyncio.to_thread(self._active.wait, within_s)
        for process in (self._active, self._waiting):
            if process is not None:
                process.end()
        self._active = self._waiting = None
        self._context.candidate_pids = frozenset()

    def _new(self) -> _Process:
        return _Process(self._context.folder, self._on_aside, self._ended)

    def _promote(self, process: _Process) -> None:
        """This one is the candidate now: it hears which of this node have ended, for they lead no more."""
        self._active = process
        process.send(
            aside.Begin(supervisor=self._boot, before=self._ends, probe_port=self.probe_port, seeks=self._seeks)
        )
        process.send(aside.Standing(follows=self._follows))
        if self.replace:
            self._waiting = self._new()
        self._tell_pids()

    def _tell_pids(self) -> None:
        processes = (self._active, self._waiting)
        self._context.candidate_pids = frozenset(p.pid for p in processes if p is not None)

    def _ended(self, process: _Process) -> None:
        """Its end of the socket is closed."""
        if self._closed:
            return
        process.end()
        if process is self._waiting:
            self._waiting = None
            asyncio.get_running_loop().call_later(_AGAIN_S, self._wait_again)
            return
        self._ends += 1
        self._active = None
        if not self.replace:
            self.on_lost()
        elif self._waiting is not None:
            self._promote(self._waiting)
        else:
            asyncio.get_running_loop().call_later(_AGAIN_S, self._start_again)

    def _wait_again(self) -> None:
        if not self._closed and self._waiting is None and self._active is not None:
            self._waiting = self._new()
            self._tell_pids()

    def _start_again(self) -> None:
        if not self._closed and self._active is None:
            self._promote(self._new())
