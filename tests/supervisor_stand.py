"""A supervisor's exits and ears around a worker or several, without a controller."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from closeranks.decide.protocol import Decision, Fact, ProcEnded
from closeranks.journal import Journal
from closeranks.run.birth import CONTROL, Place, open_channels
from closeranks.run.circle import Alone
from closeranks.run.context import Context
from closeranks.run.ears import Ears
from closeranks.run.exits import Exits
from closeranks.run.keeping import Keeping
from closeranks.run.links import Link
from closeranks.run.logs import Output
from closeranks.run.options import RunOptions
from closeranks.run.orphans import Orphans
from closeranks.run.processes import Started, Starter
from closeranks.run.screen import Nothing, Screen
from closeranks.run.vault import Vault
from closeranks.run.worker import Worker
from closeranks.vitals import Vitals


class Listener:
    """In the controller's place: keeps the facts."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def step(self, fact: Fact, now_s: float) -> tuple[Decision, ...]:
        assert now_s > 0
        self.facts.append(fact)
        return ()


class Stand:
    """A supervisor's exits with one worker: a process that sleeps. ``more`` puts another one into the next seat."""

    def __init__(self, folder: Path) -> None:
        (folder / "stacks").mkdir()
        self.listener = Listener()
        self.screen = Screen(Nothing())
        self.context = Context(
            run="r",
            folder=folder,
            options=RunOptions(target="x"),
            environment={},
            journal=Journal.create(folder / "journal.jsonl", "r", "n"),
            controller=self.listener,
            starter=Starter(None),
            screen=self.screen,
        )
        self.exits = Exits(self.context, Orphans())
        self.ears = Ears(self.context, self.exits, Keeping(self.context, Vault(), Alone(self.context.fail), None))
        self._ends: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        self.worker, self.child, self.theirs = self.more()

    def more(self) -> tuple[Worker, subprocess.Popen[bytes], socket.socket]:
        """A worker, its process, and its end of the control connection, to speak in its name."""
        seat = len(self.context.workers)
        child = subprocess.Popen(["sleep", "1000"])
        channels, fds = open_channels("test")
        theirs = socket.socket(fileno=os.dup(fds[CONTROL]))
        for fd in fds:
            os.close(fd)
        worker = Worker(
            place=Place(seat + 1, seat, 1, 1, 1, 0),
            started=Started(child.pid, os.pidfd_open(child.pid), "spawn"),
            channels=channels,
            page=Vitals(channels.vitals),
            link=Link(channels.control, lambda message: self.ears.hear(worker, message), lambda _reason: None),
            stdout=Output(channels.stdout, Path(os.devnull), self.context.say),
            stderr=Output(channels.stderr, Path(os.devnull), self.context.say),
            seat=seat,
            incarnation=1,
        )
        self.context.workers[worker.proc] = worker
        self.exits.watch(worker)
        self._ends.append((child, theirs))
        return worker, child, theirs

    async def end(self) -> None:
        """End what still lives, and close."""
        for worker in self.context.living():
            worker.signal(signal.SIGKILL)
        await until(lambda: all(worker.ended for worker in self.context.workers.values()))
        self.close()

    def close(self) -> None:
        for child, theirs in self._ends:
            theirs.close()
            child.returncode = 0
        self.context.journal.close()
        self.screen.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - callbacks of the loop bring it about, and set no event
            await asyncio.sleep(0.005)


def ended(signal_number: int | None, *, unkillable: bool) -> ProcEnded:
    return ProcEnded(proc=1, code=None, signal=signal_number, crash=None, left_at_step=None, unkillable=unkillable)
