"""The supervisor's record of one worker process: its descriptors, its place, and what it said of itself."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field

from closeranks import messages
from closeranks.decide.protocol import Crash
from closeranks.events import Category
from closeranks.run.birth import Channels, Place
from closeranks.run.links import Link
from closeranks.run.logs import Output
from closeranks.run.processes import Ended, Started
from closeranks.vitals import Vitals


@dataclass(slots=True, kw_only=True)
class Worker:
    """One process of the run. Numbers are never reused, so a record is never about two processes."""

    place: Place
    started: Started
    channels: Channels
    page: Vitals
    link: Link
    stdout: Output
    stderr: Output
    started_mono_s: float = field(default_factory=time.monotonic)
    seat: int | None = None
    incarnation: int | None = None
    facts: dict[str, str] | None = None  # of Joined
    crash: Crash | None = None
    traceback: str = ""
    left_at_step: int | None = None
    asked: bool = False  # it was told to end
    ended: Ended | None = None
    fenced: bool = False  # it cannot be killed: nothing that it says counts any more
    ring_head: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # ended or fenced
    pong: asyncio.Event = field(default_factory=asyncio.Event)
    can_replay: bool = False  # a spare that waits in its loop, with a whole model
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)  # one question at a time
    abandoned: int = 0  # groups of former terms that nothing can wake
    mute: bool = False  # its control thread did not answer the last question
    stack: asyncio.Future[str] | None = None

    @property
    def proc(self) -> int:
        """Its number in this run."""
        return self.place.proc

    @property
    def name(self) -> str:
        """``s3.2`` for the second process of seat 3, ``p7`` for a spare."""
        return f"p{self.proc}" if self.seat is None else f"s{self.seat}.{self.incarnation}"

    @property
    def outputs(self) -> tuple[Output, Output]:
        """What it prints."""
        return self.stdout, self.stderr

    @property
    def alive(self) -> bool:
        """Whether it can still act on the job."""
        return not self.gone.is_set()

    def send(self, message: messages.SupervisorMessage, fds: tuple[int, ...] = ()) -> None:
        """Send over the control connection; a process that is gone is not told anything."""
        if self.alive:
            self.link.send(message, fds)

    def signal(self, number: signal.Signals) -> None:
        """Signal exactly this process: the descriptor cannot name another one."""
        if self.ended is None:
            try:
                signal.pidfd_send_signal(self.started.pidfd, number)
            except ProcessLookupError:
                return

    def account(self, now_mono_s: float, *, library: bool) -> dict[Category, float]:
        """Seconds by category since the start; they add up to the age of the process.

        ``library``: whether any process of the run uses the library. Before a process shows vitals it is starting
        up, unless no process ever does: then nothing is known.
        """
        seconds = self.page.account(int(now_mono_s * 1e9)) if self.page.begun else {}
        before_s = now_mono_s - self.started_mono_s - sum(seconds.values())
        unseen = Category.START_UP if library else Category.UNKNOWN
        if before_s > 0:
            seconds[unseen] = seconds.get(unseen, 0.0) + before_s
        return seconds

    def hear_out(self) -> None:
        """Take into the logs what the process had written before it ended."""
        for output in self.outputs:
            output.drain()

    def release(self) -> None:
        """Close everything; only once the process is gone for good and its pages are copied."""
        self.link.close()
        for output in self.outputs:
            output.close()
        self.page.close()
        self.channels.close()
        os.close(self.started.pidfd)
