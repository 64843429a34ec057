"""Suspicion and confirmation: the detector suspects from vitals alone, a question and a look at the process decide."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from closeranks import messages
from closeranks.decide.diagnosis import NO_ANSWER
from closeranks.decide.protocol import GroupStuck, ProcStuck
from closeranks.detect import progress, roll_call
from closeranks.detect.progress import Mismatch, Standstill, Suspect, Verdict
from closeranks.events import DeadlineChanged
from closeranks.run.context import Context
from closeranks.run.descendants import descendants, read_stat, read_table, states_of_threads
from closeranks.run.worker import Worker
from closeranks.signs import Reading

ANSWER_S = 0.3
_WITNESSES_S = 0.2  # until the others come to the collective in which a process aborted; a step of delay for the proof
_WITNESS_LOOK_S = 0.005
_BUSY_TICKS = 3  # 10 ms each; a control thread that answers needs less
_BUSY_BYTES = 4096
_WAITS_FOR_MACHINE = frozenset("RD")  # states of a thread: can run, is in an uninterruptible wait
# Who waits for the interpreter's lock wakes every 5 ms, and on a busy machine it is in line for a processor at many a
# look, but not at all of them.
_LOOKS = 6


class Use(NamedTuple):
    """What a process and everything below it have used so far."""

    cpu_ticks: int
    io_bytes: int

    def busier_than(self, before: Use) -> bool:
        """Whether more was used than by answering a question."""
        return self.cpu_ticks - before.cpu_ticks >= _BUSY_TICKS or abs(self.io_bytes - before.io_bytes) >= _BUSY_BYTES


def read_use(pid: int) -> Use:
    """Children count: a rank that waits for its own data loaders works through them."""
    stat = read_stat(pid)
    if stat is None:
        return Use(0, 0)
    family = (stat, *descendants(pid, read_table()))
    return Use(sum(member.cpu_ticks for member in family), sum(_io_bytes(member.pid) for member in family))


def _io_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        fields = dict(line.split(": ", 1) for line in lines)
        return int(fields["rchar"]) + int(fields["wchar"])
    except (OSError, ValueError, KeyError):
        return 0


async def ask(worker: Worker) -> tuple[bool, bool]:
    """Whether its control thread answers, and whether the process and its children do anything meanwhile."""
    pid = worker.started.pid
    async with worker.asking:
        before = read_use(pid)
        worker.pong.clear()
        worker.send(messages.Ping(nonce=worker.proc))
        # The whole time is waited for: it is also the window in which the use of the processor is measured.
        waiting = await _threads_that_wait(pid)
        worker.mute = not worker.pong.is_set()
        busy = read_use(pid).busier_than(before)
    # One that waits for a processor or for the disk cannot answer, and shows no use of them either.
    return not worker.mute, busy or (worker.mute and bool(waiting))


async def _threads_that_wait(pid: int) -> set[int]:
    """Threads that wait for a processor or for the disk at every one of several looks within ``ANSWER_S``."""
    waiting: set[int] | None = None
    for _ in range(_LOOKS):
        await asyncio.sleep(ANSWER_S / _LOOKS)
        now = {thread for thread, state in states_of_threads(pid).items() if state in _WAITS_FOR_MACHINE}
        waiting = now if waiting is None else waiting & now
    return waiting or set()


async def call(worker: Worker) -> tuple[bool, bool]:
    """``ask`` for every day: one that answers at once is not looked at, and counts as idle."""
    async with worker.asking:
        worker.pong.clear()
        worker.send(messages.Ping(nonce=worker.proc))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.pong.wait(), ANSWER_S)
        worker.mute = not worker.pong.is_set()
    return await ask(worker) if worker.mute else (True, False)


def how_it_does(*, answered: bool, busy: bool) -> str:
    """In words, for whoever has to act on it."""
    return f"its control thread {'answers' if answered else NO_ANSWER}, it {'is busy' if busy else 'is idle'}"


class Doubts:
    """Carries the detector's memory and follows up what it finds."""

    def __init__(self, context: Context, bounds: progress.Bounds) -> None:
        self._context = context
        self._watch = progress.Watch(bounds=bounds)
        self._roll = roll_call.Roll(bounds=bounds)

    def look(self, readings: Mapping[int, Reading]) -> None:
        """``readings`` of the members that live and were not told to end, by process."""
        self._watch, findings = progress.observe(self._watch, readings, time.monotonic_ns())
        self._follow(findings)

    def call_roll(self, readings: Mapping[int, Reading]) -> None:
        """``readings`` of all processes that live and were not told to end: members, newcomers and spares."""
        self._roll, calls = roll_call.look(self._roll, readings, time.monotonic_ns())
        for one in calls:
            self._context.spawn(self._call(self._context.workers[one.proc]))

    async def explain(self, dead: int, look: Callable[[], Mapping[int, Reading]]) -> None:
        """A process aborted: tell the controller if its last collective was not that of the others.

        ``look`` gives the readings of the members by process, the last ones of the dead process included.
        """
        for _ in range(round(_WITNESSES_S / _WITNESS_LOOK_S)):
            if not progress.awaits_witnesses(look(), dead):
                break
            await asyncio.sleep(_WITNESS_LOOK_S)  # no event tells when others enter a collective
        found = progress.autopsy(look(), dead)
        if isinstance(found, Mismatch):
            self._context.feed(GroupStuck(detail=found.detail, suspects=found.suspects))

    def _follow(self, findings: tuple[progress.Finding, ...]) -> None:
        context = self._context
        for finding in findings:
            match finding:
                case Suspect():
                    context.spawn(self._confirm(context.workers[finding.proc], finding))
                case Standstill():
                    context.feed(GroupStuck(detail=finding.detail, suspects=finding.suspects))
                case DeadlineChanged():
                    context.note(finding)

    async def _confirm(self, worker: Worker, suspect: Suspect) -> None:
        answered, busy = await ask(worker)
        if not worker.alive or worker.asked:
            return
        self._watch, verdict, findings = progress.confirm(self._watch, worker.proc, answered=answered, busy=busy)
        self._follow(findings)
        if verdict in (Verdict.STUCK, Verdict.BLOCKED):
            detail = how_it_does(answered=answered, busy=busy)
            self._context.feed(
                ProcStuck(proc=worker.proc, detail=detail, silent_s=suspect.silent_s, allowed_s=suspect.allowed_s)
            )

    async def _call(self, worker: Worker) -> None:
        answered, busy = await call(worker)
        if not worker.alive or worker.asked:
            return
        answers = {worker.proc: roll_call.Answer(answered=answered, busy=busy)}
        self._roll, found = roll_call.heard(self._roll, answers, time.monotonic_ns())
        for frozen in found:
            detail = how_it_does(answered=answered, busy=busy)
            self._context.feed(
                ProcStuck(proc=worker.proc, detail=detail, silent_s=frozen.silent_s, allowed_s=frozen.allowed_s)
            )
