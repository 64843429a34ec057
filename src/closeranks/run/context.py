"""What the parts of a supervisor share: the run, its workers, the journal, and the way to the controller."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from closeranks.decide.protocol import Decision, EndRun, Fact, StopAsked
from closeranks.events import AnyEvent, IncidentClosed, IncidentOpened, ProcessExited, ProcessFailed, Record, Stamp
from closeranks.journal import Journal, JournalError
from closeranks.launch.outcome import code_of_own_end
from closeranks.run.birth import Node
from closeranks.run.options import RunOptions
from closeranks.run.processes import Starter
from closeranks.run.screen import Screen
from closeranks.run.store import Store
from closeranks.run.telling import place_of, tell
from closeranks.run.worker import Worker


class Controller(Protocol):
    """The pure core, with its state inside: it is told facts and answers with decisions."""

    def step(self, fact: Fact, now_s: float) -> tuple[Decision, ...]:
        """Take one fact."""


@dataclass(slots=True, kw_only=True)
class Context:
    """One run on this node. Created before the loop's parts, which find each other through it."""

    run: str
    folder: Path
    options: RunOptions
    environment: dict[str, str]  # the user's own
    journal: Journal
    controller: Controller
    starter: Starter
    screen: Screen
    node: Node = field(default_factory=Node)
    carry_out: Callable[[Decision], None] = field(default=lambda _: None)
    workers: dict[int, Worker] = field(default_factory=dict)  # by process number, the dead included
    unwanted: set[int] = field(default_factory=set)  # processes that were to be isolated before they existed
    members: dict[int, int] = field(default_factory=dict)  # seats of this node to process, under the newest term
    term: int = 0
    seats: int = field(init=False)  # of all nodes, as the newest group has them
    hooks: list[subprocess.Popen[bytes]] = field(default_factory=list)  # running commands of --on-incident
    keeper_pid: int | None = None
    open_files: int = 0  # the user's soft limit, which workers and hooks get back; 0: ours is the same
    candidate_pids: frozenset[int] = frozenset()  # of the processes that seek the lead of several nodes
    group: int = -1  # groups started from nothing so far, minus one
    store: Store | None = None
    stops: int = 0  # signals that asked for the end
    library: bool = False  # some process called join
    last_step: int = -1  # after which the loop ended, on the seat that said so last
    incident: int | None = None
    first_failure: ProcessFailed | ProcessExited | None = None  # since the last incident that was recovered
    ending: EndRun | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _facts: deque[Fact] = field(default_factory=deque)
    _feeding: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _journal_lost: bool = False

    def __post_init__(self) -> None:
        """Until a group is smaller, it has all seats that were asked for."""
        self.seats = self.options.seats

    def living(self) -> list[Worker]:
        """Workers that can still act."""
        return [worker for worker in self.workers.values() if worker.alive]

    def known_pids(self) -> set[int]:
        """Our own children: workers that are not reaped yet, the zygote, hooks, the keeper."""
        pids = {worker.started.pid for worker in self.workers.values() if worker.ended is None}
        pids |= {hook.pid for hook in self.hooks}
        pids |= set() if self.keeper_pid is None else {self.keeper_pid}
        pids |= self.candidate_pids
        return pids | self.starter.zygote_pids

    def say(self, line: str) -> None:
        """Tell the person at the console something that is no event."""
        self.screen.say(line)

    def feed(self, fact: Fact) -> None:
        """Tell the controller and carry out what it decides. Facts that arise meanwhile wait for their turn."""
        if self.ending is not None and not isinstance(fact, StopAsked):
            return  # what ends now, ends because the run does
        self._facts.append(fact)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._facts:
                for decision in self.controller.step(self._facts.popleft(), time.monotonic()):
                    self.carry_out(decision)
        finally:
            self._feeding = False

    def note(self, event: AnyEvent, stamp: Stamp | None = None) -> None:
        """Write to the journal, and show it. A full disk is told once and ends nothing."""
        record: Record | None
        try:
            record = self.journal.append(event, self.term, stamp)
            self._journal_lost = False
        except JournalError as error:
            if not self._journal_lost:
                self.say(f"closeranks: {error}; the run goes on without its journal until this is mended")
            self._journal_lost = True
            record = error.record
        if record is not None:
            self.screen.record(record)
        if isinstance(event, IncidentOpened):
            self.incident = event.incident
        elif isinstance(event, IncidentClosed):
            self.incident = None
            self.first_failure = None if event.outcome == "recovered" else self.first_failure
        elif isinstance(event, ProcessFailed) or (isinstance(event, ProcessExited) and _unexpected(event)):
            self.first_failure = self.first_failure or event

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loop; a defect in it ends the run instead of being lost."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.defect(error)

    def defect(self, error: BaseException) -> None:
        """End the run for a defect of ours, and show where it is: else it would hang on a fact that got lost."""
        reason = f"defect in the supervisor: {type(error).__name__}: {error}{place_of(error)}"
        self.fail(reason, code_of_own_end(self.options, 1))
        tell("".join(traceback.format_exception(error)).rstrip(), sys.stderr)

    def fail(self, reason: str, exit_code: int = 1) -> None:
        """End the run for a reason that is the supervisor's own, not the controller's."""
        self.carry_out(EndRun(outcome="failed", exit_code=exit_code, reason=reason))


def _unexpected(event: ProcessExited) -> bool:
    return not event.asked and event.code != 0
