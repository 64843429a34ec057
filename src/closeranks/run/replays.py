"""Trying a checkpoint out: a spare loads it and does the step after it; the loss must be the one that was closed then.

Digests prove that the bytes are those that were saved. This proves that the script can go on from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from closeranks import messages
from closeranks.events import StepClosed
from closeranks.run.context import Context
from closeranks.run.worker import Worker

_LOSSES_KEPT = 100_000  # newest steps whose loss is remembered


class _Try(NamedTuple):
    generation: int
    proc: int
    expected: float
    done: Callable[[str], None]


class Replays:
    """At most one at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._losses: dict[int, float] = {}  # of seat 0, by step
        self._try: _Try | None = None

    def step_done(self, closed: StepClosed) -> None:
        """Remember what seat 0 computed."""
        if closed.losses and closed.losses[0] is not None:
            self._losses.pop(closed.step, None)
            self._losses[closed.step] = closed.losses[0]
        if len(self._losses) > _LOSSES_KEPT:
            del self._losses[next(iter(self._losses))]

    def begin(self, load: messages.Load, done: Callable[[str], None]) -> None:
        """Try a generation out; ``done`` hears in words what came of it, perhaps at once."""
        step = load.step + 1
        expected = self._losses.get(step)
        spare = next((w for w in self._context.living() if w.seat is None and w.can_replay), None)
        if self._try is not None:
            done("another one is being tried out")
        elif expected is None:
            done(f"no step was replayed: the loss of step {step} is not known yet")
        elif spare is None:
            done("no step was replayed: there is no spare that could do it")
        else:
            self._try = _Try(load.generation or 0, spare.proc, expected, done)
            spare.send(messages.Replay(load=load))

    def replayed(self, worker: Worker, message: messages.Replayed) -> None:
        """A spare has done it."""
        tried = self._try
        if tried is None or (tried.proc, tried.generation) != (worker.proc, message.generation):
            return
        self._try = None
        if message.problem:
            tried.done(f"{worker.name} could not replay a step: {message.problem}")
        elif message.loss == tried.expected:
            tried.done(f"{worker.name} replayed the next step of seat 0: loss {message.loss:.9g}, equal bit for bit")
        else:
            tried.done(
                f"{worker.name} replayed the next step of seat 0: loss {message.loss!r}, it was {tried.expected!r}; "
                "either the step is not deterministic, or the state is not complete: is all of it protected?"
            )

    def look(self) -> None:
        """Called now and then: a spare may be gone, or have a seat by now."""
        tried = self._try
        if tried is None:
            return
        worker = self._context.workers.get(tried.proc)
        if worker is None or not worker.alive or worker.seat is not None:
            self._try = None
            tried.done("no step was replayed: the spare was needed")
