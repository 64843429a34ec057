"""The candidate of this node: started by the supervisor, listened to, and replaced when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from closeranks.cluster import aside
from closeranks.decide.retry_budget import Backoff, wait_s
from closeranks.log_file import opened_log
from closeranks.run.context import Context
from closeranks.run.links import Link

_AGAIN_S: Final = 1.0  # to the next start, when there was none to take over
_RECENT_S: Final = 60.0
_AT_ONCE: Final = 2  # so many ends within that time cost no wait: drills and operators kill one, too
_PAUSES: Final = Backoff(first_s=2.0, ceiling_s=30.0)


class _Process:
    """One candidate process, and our end of its socket."""

    def __init__(self, folder: Path, on_aside: Callable[[Any], None], on_ended: Callable[[_Process], None]) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs, opened_log(folder / "logs" / "candidate.log") as log:
                self._process = _started(folder, theirs.fileno(), log)
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)
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


def _started(folder: Path, link: int, log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "closeranks.cluster.candidate"),
            *(str(folder), str(link), str(os.getpid())),
        ],
        pass_fds=(link,),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


class Ends:
    """Ends of candidates that had begun, as far as they are recent."""

    def __init__(self) -> None:
        self._at_s: deque[float] = deque()
        self._broken_s: deque[float] = deque()

    def ended(self, now_s: float, *, broken: bool) -> None:
        """One ended; ``broken``: it said itself that this was a defect, or something it lacks."""
        self._at_s.append(now_s)
        if broken:
            self._broken_s.append(now_s)

    def broken(self, now_s: float) -> int:
        """How many broke lately."""
        return _recent(self._broken_s, now_s)

    def pause_s(self, now_s: float) -> float:
        """How long the next one waits, so that those which all end alike do not take up the machine."""
        too_many = _recent(self._at_s, now_s) - _AT_ONCE
        return wait_s(_PAUSES, too_many, share=1.0) if too_many > 0 else 0.0


def _recent(times_s: deque[float], now_s: float) -> int:
    while times_s and times_s[0] < now_s - _RECENT_S:
        times_s.popleft()
    return len(times_s)


class CandidateLink:
    """The candidate of this node, and one more that waits to take its place. ``on_aside`` hears what it says."""

    def __init__(self, context: Context, boot: str, on_aside: Callable[[Any], None]) -> None:
        self._context = context
        self._boot = boot
        self._on_aside = on_aside
        self._active: _Process | None = None
        self._waiting: _Process | None = None
        self._ends = 0
        self._recent = Ends()
        self._broken = ""  # why the one that is ending broke
        self._follows = 0
        self.probe_port = 0  # of the supervisor
        self._closed = self._hindered = False
        self._seeks = True
        self.replace = True  # False: without an authority there must not be a second one
        self.on_lost: Callable[[str], None] = lambda _why: None  # it ended, and there will be no other
        self.problem = ""  # why this node's candidate cannot tell who leads

    def start(self) -> None:
        """Start one, and the one that waits.

        Raises:
            OSError: there can be no further process.
        """
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
        return _Process(self._context.folder, self._hear, self._ended)

    def _newly(self, again: Callable[[], None]) -> _Process | None:
        """A further one; where there can be none now (limits of memory, processes, files), ``again`` is called soon."""
        try:
            process = self._new()
        except OSError as error:
            if not self._hindered:
                self._context.say(f"closeranks: a candidate for the lead cannot be started: {error}; tried again")
            self._hindered = True
            asyncio.get_running_loop().call_later(_AGAIN_S, again)
            return None
        self._hindered = False
        return process

    def _hear(self, word: aside.FromCandidate) -> None:
        match word:
            case aside.Unanswered():
                self.problem = f"the authority does not answer: {word.problem}" if word.problem else ""
                return
            case aside.Broken():
                self._broken = word.reason
                return
            case aside.LeaderSeen():
                self.problem = ""
        self._on_aside(word)

    def _promote(self, process: _Process) -> None:
        """This one is the candidate now: it hears which of this node have ended, for they lead no more."""
        self._active = process
        process.send(
            aside.Begin(
                supervisor=self._boot,
                before=self._ends,
                broken=self._recent.broken(time.monotonic()),
                probe_port=self.probe_port,
                seeks=self._seeks,
            )
        )
        process.send(aside.Standing(follows=self._follows))
        self._waiting = self._newly(self._wait_again) if self.replace else None
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
        why, self._broken = self._broken, ""
        now_s = time.monotonic()
        self._recent.ended(now_s, broken=bool(why))
        self.problem = f"this node's candidate for the lead ended: {why}" if why else self.problem
        pause_s = self._recent.pause_s(now_s)
        if not self.replace:
            self.on_lost(why)
        elif self._waiting is not None and not pause_s:
            self._promote(self._waiting)
        else:
            asyncio.get_running_loop().call_later(max(_AGAIN_S, pause_s), self._start_again)

    def _wait_again(self) -> None:
        if not self._closed and self._waiting is None and self._active is not None:
            self._waiting = self._newly(self._wait_again)
            self._tell_pids()

    def _start_again(self) -> None:
        if self._closed or self._active is not None:
            return
        process = self._waiting or self._newly(self._start_again)
        if process is not None:
            self._promote(process)
