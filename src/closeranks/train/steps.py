"""The training loop's protocol: open an attempt, apply it once, close it; or void it, regroup and repeat it."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import time
from typing import TYPE_CHECKING, Any, Self

import torch

from closeranks import messages
from closeranks.decide.suspicion import Next
from closeranks.detect.timings import FETCHING, UPDATING
from closeranks.events import Category
from closeranks.signs import Doing
from closeranks.train import transfer
from closeranks.train.inner import Inner
from closeranks.train.lasting import Lasting
from closeranks.train.poison import PeerLost
from closeranks.train.world import Attempt
from closeranks.vitals import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from closeranks.train.job import Job

_QUIET_S = 20.0
_RESTART_S = 120.0
_TIMER_SUMMARY_S = 5.0
# Members of an enumeration are slow to look up, and these are wanted in every step.
_BETWEEN, _OPEN, _APPLYING = Attempt.NONE, Attempt.OPEN, Attempt.APPLYING
_USEFUL, _REPEATED = Category.USEFUL, Category.REPEATED


class MicroBatch:
    """One part of an accumulated step: ``batch``, and ``weight`` to scale its loss with."""

    def __init__(self, batch: Any, weight: float) -> None:
        self.batch = batch
        self.weight = weight


class Step:
    """One try at one optimizer update; use it as ``with step:``."""

    def __init__(self, loop: Loop, number: int, *, rehearsal: bool = False) -> None:
        self.number = number
        self.rehearsal = rehearsal
        self.batch: Any = None
        self.entered = False
        self.loss = math.nan
        self._loop = loop
        self._callbacks: list[Callable[[], Any]] = []

    def __enter__(self) -> Self:
        self.entered = True
        self._loop.open(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._loop.leave(self, error)

    def report(self, *, loss: Any = None, grad_norm: Any = None) -> None:
        """Show this seat's loss and gradient norm to the supervisor, before the update is applied.

        Numbers or tensors of one element.
        """
        reals = self._loop.world.vitals.reals
        if loss is not None:
            self.loss = _number(loss)
            reals[Field.LOSS] = self.loss
        if grad_norm is not None:
            reals[Field.GRAD_NORM] = _number(grad_norm)

    def on_close(self, callback: Callable[[], Any]) -> None:
        """Call ``callback`` once, after the step is closed here; never for a void attempt or a rehearsal."""
        self._callbacks.append(callback)

    def run_callbacks(self) -> None:
        """Run what on_close collected."""
        for callback in self._callbacks:
            callback()

    def forget_callbacks(self) -> None:
        """The step is closed without its update: nothing has happened that on_close could tell of."""
        self._callbacks.clear()

    def micro_batches(self, count: int) -> Iterator[MicroBatch]:
        """Split this seat's batch into ``count`` parts for gradient accumulation.

        Gradients are synchronised with the last part only. Multiply the mean loss of a part by its ``weight``: the
        accumulated gradient is then the mean over all samples of the global batch, even where shares differ.
        """
        batches = self._loop.job.batches
        if batches is None:
            raise RuntimeError("step.micro_batches(): give the data with job.protect(batches=cr.Batches(...)) first")
        parts = _split(self.batch, count)
        seats = self._loop.world.size
        for index, (part, size) in enumerate(parts):
            with contextlib.ExitStack() as stack:
                if index < len(parts) - 1:
                    for module in self._loop.job.protected.modules.values():
                        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                            stack.enter_context(module.no_sync())
                yield MicroBatch(part, size * seats / batches.global_batch)


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _split(batch: Any, count: int) -> list[tuple[Any, int]]:
    if count < 1:
        raise ValueError(f"step.micro_batches({count}): expected at least 1")
    first = batch
    while isinstance(first, (list, tuple, dict)):
        first = next(iter(first.values())) if isinstance(first, dict) else first[0]
    total = len(first)
    bounds = [total * i // count for i in range(count + 1)]
    return [(_slice(batch, a, b), b - a) for a, b in itertools.pairwise(bounds) if b > a]


def _slice(batch: Any, start: int, stop: int) -> Any:
    if isinstance(batch, dict):
        return {key: _slice(value, start, stop) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], torch.Tensor):
        return type(batch)(_slice(value, start, stop) for value in batch)
    return batch[start:stop]


class Loop:
    """Carries one worker through its steps."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.world = job.world
        self.lasting = Lasting(self)
        self.closed = -1
        self.highest = -1  # highest step that was ever closed here: at or below it a step is repeated
        self._attempt = 0
        self._last = -1  # the step that was tried last
        self._intact = True
        self._undone = False
        self._lost_since_ns = 0
        self._void: Step | None = None  # an attempt whose traces have to be undone, or that others have closed
        self._to_report_resume = False
        self._next_summary_s = 0.0

    # --- the generator behind job.steps -------------------------------------------------------------------------

    def run(self, until: int) -> Iterator[Step]:
        """Yield steps until ``until`` are closed everywhere."""
        finished = False
        try:
            yield from self._enter()
            while not finished:
                while self.closed + 1 < until and not self._stop_due():
                    if self.world.poison is not None:
                        self._recover()
                        continue
                    step = Step(self, self.closed + 1)
                    yield step
                    if not step.entered:
                        raise RuntimeError("job.steps(): the step was not used; put the update inside `with step:`")
                finished = self._finish()
        finally:
            if not finished and self.job.control is not None:
                self.job.control.send(messages.LeftLoop(closed_step=self.closed))

    def _stop_due(self) -> bool:
        control = self.job.control
        return control is not None and control.stop_after is not None and self.closed >= control.stop_after

    # --- one attempt -------------------------------------------------------------------------------------------

    def open(self, step: Step) -> None:
        """Begin an attempt."""
        world, job = self.world, self.job
        if world.attempt is not _BETWEEN:
            raise RuntimeError("`with step:` inside another step block; one block is one update")
        if job.control is not None and not step.rehearsal:  # without a supervisor nothing is tried again
            job.undo.take()
        opened_ns, number, seat = time.monotonic_ns(), step.number, world.seat or 0
        if job.batches is not None:
            step.batch = job.batches.fetch(number, seat, world.size)
            fetched_ns, opened_ns = opened_ns, time.monotonic_ns()
            job.timers.show(FETCHING, opened_ns - fetched_ns)
        job.randomness.set_for(number, seat)
        self._attempt = self._attempt + 1 if self._last == number else 1
        self._last = number
        job.held.open(self._attempt, rehearsal=step.rehearsal)
        job.held.take(step.batch)
        self.lasting.hear_of_saves()
        world.opened_ns = opened_ns
        world.own.open(opened_ns)
        world.backward_seen = step.rehearsal
        world.attempt = _OPEN
        world.vitals.open_step(number, self._attempt, opened_ns)
        if step.rehearsal:
            world.vitals.move(Doing.STARTING)
        else:
            world.vitals.spend(_REPEATED if number <= self.highest else _USEFUL, opened_ns)
            if self._to_report_resume:
                self._report_resume()
        job.strike("forward", number, rehearsal=step.rehearsal)

    def _report_resume(self) -> None:
        if self.job.control is not None:
            self._to_report_resume = False
            self.job.control.send(
                messages.Resumed(
                    term=self.world.term,
                    lost_since_mono_s=self._lost_since_ns / 1e9,
                    resumed_mono_s=self.world.opened_ns / 1e9,
                )
            )

    def leave(self, step: Step, error: BaseException | None) -> bool:
        """End an attempt; True swallows ``error``, since the attempt is void and will be repeated."""
        world = self.world
        applying = world.attempt is _APPLYING
        world.attempt = _BETWEEN
        if applying:
            self.job.timers.show(UPDATING, time.monotonic_ns() - world.applied_ns)
        else:
            world.own.begin(time.monotonic_ns())
        if world.poison is not None and not applying:
            self._lost_since_ns, self._void = world.opened_ns, None if step.rehearsal else step
            return error is None or isinstance(error, Exception)
        if self.job.held.outcome is not None and not applying:
            self._void_held(step, self.job.held.outcome)
            return error is None or isinstance(error, Exception)
        if error is not None:
            return False
        if step.rehearsal:
            return False
        self._close(step, applied=applying)
        return False

    def _void_held(self, step: Step, outcome: Next) -> None:
        """All seats found something odd before the update: undo the attempt; the step comes again, or never."""
        world = self.world
        if not world.wait_quiet(_QUIET_S):
            raise RuntimeError(f"step {step.number} is held, and its collectives still run after {_QUIET_S:.0f} s")
        self.job.undo.restore()
        world.vitals.spend(Category.REPEATED, at_ns=world.opened_ns)
        if outcome is Next.SKIP:
            step.forget_callbacks()
            self._close(step, applied=False)

    def _close(self, step: Step, *, applied: bool) -> None:
        job = self.job
        job.strike("closing", step.number)
        job.held.closed(step.number, applied=applied)
        if job.page is not None:
            job.page.write(step.number)
        self.closed = step.number
        self.highest = max(self.highest, step.number)
        self._mark_closed(step)
        self._attempt = 0
        step.run_callbacks()
        if job.alone is not None:
            job.alone.step_closed(step.number)
        self.lasting.snapshot_if_due()
        self._summarise_timers()
        job.strike("between", step.number)

    def _mark_closed(self, step: Step) -> None:
        self.world.vitals.close_step(step.number, self._attempt, self.world.opened_ns, step.loss)

    def _summarise_timers(self, *, last: bool = False) -> None:
        now_s = time.monotonic()
        if self.job.control is None or (now_s < self._next_summary_s and not last):
            return
        self._next_summary_s = now_s + _TIMER_SUMMARY_S
        for name, count, p50_s, p99_s in self.job.timers.summaries():
            self.job.control.send(messages.Timer(name=name, count=count, p50_s=p50_s, p99_s=p99_s))

    # --- entering and leaving the loop --------------------------------------------------------------------------

    def _enter(self) -> Iterator[Step]:
        job = self.job
        job.begin_loop()
        if job.control is None:
            if job.alone is not None:
                self.closed = self.highest = job.alone.load()
            return
        count = job.rehearsal_steps()
        if count:
            with job.rehearsing():
                for _ in range(count):
                    began_ns = time.monotonic_ns()
                    yield Step(self, 0, rehearsal=True)
                    self._stop_if_setup_failed()
                    self.world.vitals.words[Field.REHEARSED_NS] = time.monotonic_ns() - began_ns
        if job.loads:
            self.lasting.load()
        job.end_setup(rehearsed=count > 0)
        if job.newcomer:
            yield from self._be_seated()
        elif job.page is not None:
            job.page.write(self.closed)

    def _stop_if_setup_failed(self) -> None:
        if self.world.poison is not None:
            self.await_restart()

    def await_restart(self) -> None:
        """A peer was lost before the loop: there is nothing to go back to, the supervisor restarts the group."""
        time.sleep(_RESTART_S)
        self.world.raise_if_poisoned()

    def _be_seated(self) -> Iterator[Step]:
        """Wait for a seat, however many terms that takes; meanwhile checkpoints can be tried out here."""
        self._lost_since_ns = time.monotonic_ns()
        self._intact = False
        self.world.vitals.spend(Category.SPARE_IDLE if self.world.seat is None else Category.STALLED)
        self.world.vitals.move(Doing.WAITING)
        seat = self.job.take_pending_seat()
        while seat is None:
            message = self._await_seat(messages.Replay)
            if isinstance(message, messages.Replay):
                yield from self.lasting.replay(message)
            else:
                seat = message
        self._join_terms(seat)

    def _finish(self) -> bool:
        """Wait until everybody closed the last step; False: there was a loss, go on."""
        control = self.job.control
        if control is None:
            if self.job.alone is not None:
                self.job.alone.finish(self.closed)
            return True
        self.world.vitals.move(Doing.WAITING)
        self._summarise_timers(last=True)
        control.send(messages.Finished(step=self.closed))
        self.job.strike("idle", self.closed)
        while True:
            if self.world.poison is not None:
                self._recover()
                return False
            self.lasting.snapshot_if_due()
            message = self.next_message()
            if isinstance(message, messages.Confirm) and message.term == self.world.term:
                digest = self.job.protected.digest() if self.job.held.compares_state else ""
                control.send(messages.Confirmed(term=message.term, digest=digest))
            if isinstance(message, messages.Leave):
                self.world.vitals.spend(Category.SHUT_DOWN)
                self.world.vitals.move(Doing.LEAVING)
                self.job.write_final(self.closed)
                return True

    # --- closing ranks -----------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """From a poisoned term to the next one in which everybody holds the same state."""
        if self._void is None:
            self._lost_since_ns = time.monotonic_ns()
        self.world.vitals.spend(Category.STALLED, at_ns=self._lost_since_ns)
        self._pause()
        self._join_terms(self._await_seat())

    def _pause(self) -> None:
        """Leave the attempt; what is awaited then is a seat under the next term."""
        world, job = self.world, self.job
        term = world.term
        world.vitals.move(Doing.RECOVERING)
        if not world.wait_quiet(_QUIET_S):
            raise RuntimeError(f"collectives of term {term} still run {_QUIET_S:.0f} s after they were cut")
        if self._void is not None and not self._undone:
            job.undo.restore()
            self._undone = True
        if job.control is not None:
            job.control.send(
                messages.Paused(
                    term=term,
                    closed_step=self.closed if self._intact else -1,
                    intact=self._intact,
                    settled=True,
                    digest=job.protected.digest() if self._intact else "",
                    abandoned=world.abandoned,
                )
            )
        world.vitals.move(Doing.WAITING)

    def _join_terms(self, seat: messages.Seat) -> None:
        while True:
            try:
                self._join_term(seat)
            except PeerLost as lost:
                self.world.poison_term(seat.term, lost.detail)
                self._pause()
                seat = self._await_seat()
                continue
            break
        self._to_report_resume = True
        self.world.own.forget()
        self._close_with_the_others()
        self.lasting.snapshot_if_due()

    def _close_with_the_others(self) -> None:
        """Peers had applied the step of our void attempt: it is closed here too, with the loss that we computed."""
        step, self._void, self._undone = self._void, None, False
        if step is not None and step.number == self.closed:
            self._mark_closed(step)
            step.run_callbacks()

    def _join_term(self, seat: messages.Seat) -> None:
        world, job = self.world, self.job
        control = job.require_control()
        world.vitals.spend(Category.STALLED)
        world.vitals.move(Doing.RECOVERING)
        newly = world.seat is None or not self._intact
        job.take_seat(seat)
        job.strike("recovering", self.closed)
        groups = world.regroup(seat)
        control.send(messages.Regrouped(term=seat.term, groups=groups))
        world.vitals.move(Doing.WAITING)
        plan = self._await(messages.Restore, seat.term)
        world.vitals.move(Doing.RESTORING)
        self._restore(plan, newly=newly)
        control.send(messages.Restored(term=seat.term, step=plan.step, digest=job.protected.digest()))
        world.vitals.move(Doing.WAITING)
        self._await(messages.Go, seat.term)

    def _restore(self, plan: messages.Restore, *, newly: bool) -> None:
        world, job = self.world, self.job
        inner = world.groups[0].inner
        if not isinstance(inner, Inner) or world.seat is None:
            raise PeerLost(plan.term, "the group was dropped")
        line = transfer.Line(inner, plan.term, world.vitals)
        if plan.donor == world.seat and plan.receivers:
            transfer.give(line, job.protected, list(plan.receivers))
        elif world.seat in plan.receivers and plan.donor is not None:
            transfer.take(line, job.protected, plan.donor)
            self._intact = False
            if job.page is not None and (newly or plan.step > self.closed):
                job.page.inherit(plan.step)
        self.closed = plan.step
        self.highest = max(self.highest, plan.step)
        self._intact = True
        world.vitals.words[Field.CLOSED_STEP] = plan.step
        if job.page is not None:
            job.page.write(plan.step)

    # --- messages ----------------------------------------------------------------------------------------------

    def next_message(self) -> messages.SupervisorMessage:
        """What the supervisor says next; an Interrupt of our own making when the term was poisoned meanwhile."""
        control = self.job.require_control()
        while True:
            try:
                return control.inbox.get(timeout=0.5)
            except queue.Empty:
                if self.world.poison is not None:
                    return messages.Interrupt(term=self.world.term, reason=self.world.poison)

    def _await_seat(self, *others: type[messages.Replay]) -> Any:
        """The next seat, or a message of one of the other kinds if it comes first."""
        while True:
            message = self.job.require_control().inbox.get()
            if isinstance(message, messages.Seat) and message.term > self.world.term:
                return message
            if isinstance(message, others):
                return message
            if isinstance(message, messages.Leave):
                raise SystemExit(0)

    def _await(self, kind: type[Any], term: int) -> Any:
        """The next message of this kind under ``term``.

        Raises:
            PeerLost: the term ended first.
        """
        while True:
            self.world.raise_if_poisoned()
            message = self.next_message()
            if isinstance(message, messages.Interrupt) and message.term == term:
                raise PeerLost(term, message.reason)
            if isinstance(message, kind) and message.term == term:
                return message
            if isinstance(message, messages.Leave):
                raise SystemExit(0)
