"""The candidate of this node: started by the supervisor, listened to, and replaced when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from closeranks.cluster import aside
from closeranks.run.context import Context
from closeranks.run.links import Link

_AGAIN_S: Final = 0.05  # after the first end; doubled each time
_AGAIN_MAX_S: Final = 5.0


class CandidateLink:
    """At most one candidate at a time. ``on_aside`` hears what it says."""

    def __init__(self, context: Context, boot: str, on_aside: Callable[[Any], None]) -> None:
        self._context = context
        self._boot = boot
        self._on_aside = on_aside
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._link: Link | None = None
        self._ends = 0
        self._follows = 0
        self._closed = False
        self.replace = True  # False: without an authority there must not be a second one
        self.on_lost: Callable[[], None] = lambda: None  # it ended, and there will be no other

    def start(self) -> None:
        """Start one. It is told which candidates of this node have ended: they lead no more."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        arguments = [str(self._context.folder), str(theirs.fileno()), str(os.getpid()), self._boot, str(self._ends)]
        with theirs, (self._context.folder / "logs" / "candidate.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "closeranks.cluster.candidate", *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._context.candidate_pid = self._process.pid
        self._socket = ours
        self._link = Link(ours, self._on_aside, self._broken, aside.FromCandidate)
        self._link.on_closed = self._ended
        self._link.send(aside.Standing(follows=self._follows))

    def stand(self, follows: int) -> None:
        """Which epoch this node hears; told when it changes."""
        if follows != self._follows:
            self._follows = follows
            if self._link is not None:
                self._link.send(aside.Standing(follows=follows))

    async def finish(self, within_s: float) -> None:
        """The run is over here: a candidate that leads sees to the other nodes first."""
        self._closed = True
        if self._link is None or self._process is None:
            return
        self._link.send(aside.Ending())
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, within_s)
        self._let_go()

    def _broken(self, reason: str) -> None:
        self._context.say(f"closeranks: the candidate of this node is ended: {reason}")
        self._ended()

    def _ended(self) -> None:
        """Its end of the socket is closed: see that it is gone for certain before another one is told so."""
        if self._closed:
            return
        self._let_go()
        self._ends += 1
        if not self.replace:
            self.on_lost()
            return
        wait_s = min(_AGAIN_S * 2 ** (self._ends - 1), _AGAIN_MAX_S)
        asyncio.get_running_loop().call_later(wait_s, self._start_again)

    def _start_again(self) -> None:
        if not self._closed:
            self.start()

    def _let_go(self) -> None:
        if self._link is not None and self._socket is not None:
            self._link.close()
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._context.candidate_pid = None
        self._link = self._socket = self._process = None
