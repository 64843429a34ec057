"""The training loop's part in state that lasts: snapshots between steps, loading before the first, trying one out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from closeranks import messages
from closeranks.events import Category
from closeranks.signs import Doing
from closeranks.vitals import Field

if TYPE_CHECKING:
    from collections.abc import Iterator

    from closeranks.train.steps import Loop, Step


class Lasting:
    """Belongs to one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def load(self) -> None:
        """Begin with saved state: read what the supervisor names, adopt it when every seat has read it."""
        loop, job = self._loop, self._loop.job
        control, keeping = job.require_control(), job.require_keeping()
        while True:
            loop.world.vitals.move(Doing.WAITING)
            message = loop.next_message()
            match message:
                case messages.Load():
                    with job.section("load"):
                        job.strike("loading", message.step)
                        loaded = keeping.load(message, control.take_descriptors(message), self._place())
                    control.send(loaded)
                case messages.Adopt():
                    keeping.adopt()
                    loop.closed = loop.highest = message.step
                    loop.world.vitals.words[Field.CLOSED_STEP] = message.step
                    control.send(messages.Adopted(step=message.step))
                    return
                case messages.Interrupt():
                    loop.await_restart()
                case messages.Leave():
                    raise SystemExit(0)

    def snapshot_if_due(self) -> None:
        """Copy this seat's part of the state if the step that was asked for is the last closed one."""
        loop, control = self._loop, self._loop.job.control
        asked = None if control is None else control.snapshot
        if control is None or asked is None or asked.step > loop.closed:
            return
        if control.snapshot is asked:
            control.snapshot = None
        if asked.step < loop.closed:
            problem = f"seat {loop.world.seat} had closed step {loop.closed} when it was asked"
            control.send(
                messages.Snapped(save=asked.save, step=asked.step, image_bytes=0, pause_s=0.0, problem=problem)
            )
            return
        with loop.job.section("snapshot"):
            loop.job.strike("snapshot", loop.closed)
            snapped = loop.job.require_keeping().snapshot(asked, self._place(), loop.job.batches)
        control.send(snapped)

    def hear_of_saves(self) -> None:
        """An error of a save reaches the script at the next step boundary."""
        control = self._loop.job.control
        if control is not None and control.save_problem is not None:
            self._loop.job.save_problem = control.save_problem.problem
            control.save_problem = None

    def replay(self, message: messages.Replay) -> Iterator[Step]:
        """Try a checkpoint out in a process without a seat: do the step after it as seat 0 did, and tell the loss.

        The private world of a spare gives other gradients, so the loss before the update is what can be compared.
        Afterwards everything here is as before.
        """
        from closeranks.train.steps import Step

        loop, job = self._loop, self._loop.job
        keeping = job.require_keeping()
        loss = math.nan
        with job.rehearsing():
            loaded = keeping.load(message.load, (), (0, loop.world.size))
            problem = loaded.problem
            if not problem:
                keeping.adopt()
                step = Step(loop, message.load.step + 1, rehearsal=True)
                yield step
                loss = step.loss
        loop.world.vitals.spend(Category.SPARE_IDLE)
        loop.world.vitals.move(Doing.WAITING)
        if not problem and not math.isfinite(loss):
            problem = "the step reported no loss"
        job.require_control().send(
            messages.Replayed(
                generation=message.load.generation or 0, loss=loss if not problem else 0.0, problem=problem
            )
        )

    def _place(self) -> tuple[int, int]:
        return self._loop.world.seat or 0, self._loop.world.size
