"""The regular look at all workers: closed steps, where seconds went, and whether there is progress."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Mapping

from closeranks.decide.protocol import ProcStuck, StepDone, Tick
from closeranks.detect.straggler import Step
from closeranks.detect.straggler_cause import Place
from closeranks.events import StepClosed
from closeranks.nodes.words import SeatSign
from closeranks.run.cadence import Cadence
from closeranks.run.context import Context
from closeranks.run.doubts import Doubts
from closeranks.run.exits import Exits
from closeranks.run.options import Target
from closeranks.run.orphans import Orphans
from closeranks.run.stacks import capture
from closeranks.run.stragglers import Stragglers
from closeranks.run.tally import Tally
from closeranks.run.worker import Worker
from closeranks.signs import Reading, Spent, mean_of

LOOK_S = 0.05
_TICK_S = 0.25
_ACCOUNT_S = 2.0


class Watch:
    """Looks every ``LOOK_S`` from ``run``; ``part`` is called when a worker has ended."""

    def __init__(self, context: Context, exits: Exits, orphans: Orphans, doubts: Doubts | None) -> None:
        """Without ``doubts`` somebody else judges: on one node of several the coordinator, from the signs of all."""
        self._context = context
        self._exits = exits
        self._orphans = orphans
        self._doubts = doubts
        self._tally = Tally(context.options.seats)
        self._last_words: dict[int, tuple[int, float]] = {}  # by seat: open step and loss of its last dead occupant
        self._aborted: dict[int, Reading] = {}  # last readings, by process
        self._quiet_since_s = time.monotonic()
        self._closed_s = 0.0  # when the newest step was closed; 0: none since the last disturbance
        self.stragglers = None if doubts is None else Stragglers()
        self.newest = Step(own_s={})  # what the processes of this node show of the newest closed step
        self._cadence = Cadence()
        self.on_step: Callable[[StepClosed, float], None] = lambda _, _period_s: None  # every seat closed it

    # --- called by others ---------------------------------------------------------------------------------------

    def start_group(self) -> None:
        """A group starts from nothing."""
        self._tally.restart()
        self._last_words.clear()
        self._quiet_since_s = time.monotonic()

    def expect(self) -> None:
        """A term begins: the seats of this node may be others than before."""
        self._tally.expect(self._context.members, self._context.seats)
        self._closed_s = 0.0
        if self.stragglers is not None:
            self.stragglers.disturbed()

    def settle(self, step: int) -> None:
        """A restore plan goes on after this step."""
        # Those who had done their part in the step and died before they could close it may have reported a loss.
        losses = {seat: loss for seat, (open_step, loss) in self._last_words.items() if open_step == step}
        for closed in self._tally.settle(step, losses):
            self._close(closed, {})

    def newest_open_step(self) -> int:
        """The highest step that a seat has opened or is about to open."""
        pages = [worker.page for worker in self._members().values() if worker.page.begun]
        return max((page.read().step for page in pages), default=0)

    def steps_in(self, seconds: float) -> float:
        """How many steps the seats usually do in that time; 0 before that is known."""
        return self._cadence.steps_in(seconds)

    def signs(self) -> tuple[SeatSign, ...]:
        """Vitals of the seats of this node, for the coordinator."""
        return tuple(
            SeatSign(proc=worker.proc, seat=seat, asked=worker.asked, reading=reading)
            for seat, worker, reading in self._readings()
        )

    def quiet_s(self, now_s: float) -> float:
        """How long no process of this node has printed anything."""
        return now_s - max(map(self._heard_s, self._context.living()), default=now_s)

    def part(self, worker: Worker) -> None:
        """A worker has ended and its page is about to go: what it closed was closed before its end, and is told so."""
        self._gather()
        seat = self._seat_of(worker)
        if seat is None or not worker.page.begun:
            return
        reading = worker.page.read()
        if math.isfinite(reading.loss):
            self._last_words[seat] = (reading.step, reading.loss)
        if worker.ended is not None and worker.ended.signal == signal.SIGABRT and not worker.asked:
            self._aborted[worker.proc] = reading

    async def explain(self, worker: Worker) -> None:
        """Look for what made a worker end, before the controller is told of the end."""
        last = self._aborted.pop(worker.proc, None)
        if last is not None and self._doubts is not None:
            await self._doubts.explain(worker.proc, lambda: {**self._by_process(), worker.proc: last})

    # --- the loop -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look until every process has ended after the end of the run."""
        next_tick_s = next_account_s = time.monotonic()
        while self._context.ending is None or self._context.living():
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            self.look()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._context.feed(Tick())
                self._exits.sweep()
                self._flush_outputs()
                self._hear_silence(now_s)
            if now_s >= next_account_s:
                next_account_s = now_s + _ACCOUNT_S
                self._orphans.note([worker.started.pid for worker in self._context.living()])
                for worker in self._context.living():
                    self._exits.report_account(worker)

    def look(self) -> None:
        """One look at all members."""
        self._gather()
        readings = self._readings()
        if readings:
            self._context.screen.vitals({seat: reading for seat, _, reading in readings})
        if self._doubts is not None:
            self._doubts.look({worker.proc: reading for _, worker, reading in readings if not worker.asked})
            self._doubts.call_roll(self._listening())

    def _gather(self) -> None:
        """Take the steps that workers have closed since the last time, and tell those that are closed by all."""
        for worker in self._members().values():
            seat = self._seat_of(worker)
            if seat is not None and worker.page.begun:
                worker.ring_head, marks = worker.page.steps_since(worker.ring_head)
                self._tally.add(seat, marks)
        steps = self._tally.take_closed()
        spent = self.spent() if steps and self.stragglers is not None else {}
        for closed in steps:
            self._close(closed, spent)

    def _members(self) -> dict[int, Worker]:
        context = self._context
        found = {seat: context.workers.get(proc) for seat, proc in context.members.items()}
        return {seat: worker for seat, worker in found.items() if worker is not None and worker.alive}

    def _seat_of(self, worker: Worker) -> int | None:
        """Its seat under the newest term; None for a spare and for an old incarnation, whose marks count no more."""
        seated = worker.seat is not None and self._context.members.get(worker.seat) == worker.proc
        return worker.seat if seated and not worker.fenced else None

    def _by_process(self) -> dict[int, Reading]:
        return {worker.proc: reading for _, worker, reading in self._readings()}

    def _readings(self) -> list[tuple[int, Worker, Reading]]:
        return [(seat, worker, worker.page.read()) for seat, worker in self._members().items() if worker.page.begun]

    def _listening(self) -> dict[int, Reading]:
        """Of whoever has a control thread. What a command leads to may end before the command does, unseen."""
        if self._context.options.kind is Target.COMMAND:
            return {}
        living = [worker for worker in self._context.living() if worker.page.begun and not worker.asked]
        return {worker.proc: worker.page.read() for worker in living}

    def spent(self) -> dict[int, Spent]:
        """By process of a seat of this node: seconds spent in each named operation so far."""
        return {worker.proc: worker.page.sections.read() for _, worker, _ in self._readings()}

    def _close(self, closed: StepClosed, spent: Mapping[int, Spent]) -> None:
        period_s = closed.closed_mono_s - self._closed_s if self._closed_s else 0.0
        self._closed_s = closed.closed_mono_s
        self._cadence.add(period_s)
        self._context.note(closed)
        self._weigh(closed, spent, period_s)
        self._context.feed(
            StepDone(
                step=closed.step,
                duration_s=closed.closed_mono_s - closed.began_mono_s,
                period_s=period_s,
                ago_s=max(0.0, time.monotonic() - closed.closed_mono_s),
                loss=mean_of(closed.losses),
                grad_norm=closed.grad_norm,
            )
        )
        self.on_step(closed, period_s)

    def _weigh(self, closed: StepClosed, spent: Mapping[int, Spent], period_s: float) -> None:
        """Whether somebody keeps the others waiting. On several nodes the coordinator asks that, of all."""
        members = self._context.members
        own_s = {members[seat]: s for seat, s in enumerate(closed.own_s) if s is not None and seat in members}
        self.newest = Step(own_s=own_s, spent=spent, period_s=period_s)
        if self.stragglers is not None:
            places = {proc: Place(seat=seat) for seat, proc in members.items()}
            for event in self.stragglers.closed(closed.step, self.newest, places):
                self._context.note(event)

    # --- scripts without the library ----------------------------------------------------------------------------

    def _flush_outputs(self) -> None:
        for worker in self._context.living():
            for output in worker.outputs:
                output.flush_partial()

    def _hear_silence(self, now_s: float) -> None:
        """Without vitals the only sign of life is output."""
        context = self._context
        if context.library or context.ending is not None or self._doubts is None:
            return
        living = context.living()
        if not living:
            return
        quietest = min(living, key=self._heard_s)
        last_s = max(map(self._heard_s, living))
        silent_s, allowed_s = now_s - last_s, context.options.silence_s
        if silent_s > allowed_s:
            self._quiet_since_s = now_s
            detail = f"no process printed anything for {silent_s:.1f} s, {allowed_s:g} s are allowed (--silence)"
            fact = ProcStuck(proc=quietest.proc, detail=detail, silent_s=silent_s, allowed_s=allowed_s)
            context.spawn(self._capture_all(living, fact))

    def _heard_s(self, worker: Worker) -> float:
        heard = (output.heard_mono_s for output in worker.outputs)
        return max([self._quiet_since_s, *(at_s for at_s in heard if at_s is not None)])

    async def _capture_all(self, workers: list[Worker], fact: ProcStuck) -> None:
        """Nobody can be named without vitals, so the stacks of all are the evidence."""
        context = self._context
        captures = (capture(worker, context.folder, context.options.kind) for worker in workers)
        for captured in await asyncio.gather(*captures):
            context.note(captured)
        context.feed(fact)
