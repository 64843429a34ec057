"""The real straggler detector over virtual own times: who is named as slow, and when.

It looks where there is something to see: from the beginning of a slow time, with the steps before it, until the slow
seat is named; again after a recovery; and from its end until the seat is told to be as fast as the others. Between
these its memory stands. It changes nothing in a run, so that it looks only where a journal is written.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from closeranks.detect.straggler import Rule, Step
from closeranks.detect.straggler_cause import Place
from closeranks.events import AnyEvent, StragglerEased, StragglerNamed
from closeranks.run.stragglers import Stragglers
from closeranks.simulate.stretch import Stretch

if TYPE_CHECKING:
    from closeranks.simulate.world import World

JITTER: Final = 0.02  # standard deviation of a step's own time, as a share of it
_STEPS_MOST: Final = 60  # who was not named in so many is not slow enough to be
_MEMORY_STEPS: Final = Rule().windows * Rule().least_steps


class Laggard:
    """The seat that is slow, and the detector that watches all of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._detector = Stragglers()
        self._rng = random.Random(0)  # noqa: S311 - jitter that replays, not a secret
        self._seat: int | None = None
        self._factor = 1.0
        self._left = 0  # steps that are still looked at

    def begins(self, seat: int, factor: float) -> None:
        """From now on the seat takes so many times its time. Training goes on in another stretch."""
        if self._world.tape is None:
            return
        stretch = self._world.stretch
        if stretch is not None and not self._left:
            self._remember(stretch)
        self._seat, self._factor, self._left = seat, factor, _STEPS_MOST

    def over(self) -> None:
        """From now on it is as fast as the others."""
        if self._seat is not None:
            self._seat, self._left = None, _STEPS_MOST

    def disturbed(self) -> None:
        """Training goes on after a recovery, perhaps with others."""
        self._detector.disturbed()
        if self._seat is not None or self._left:
            self._left = _STEPS_MOST

    def recovered(self, first_step_s: float | None) -> None:
        """A recovery took so long."""
        self._detector.recovered(first_step_s)

    def opened(self, stretch: Stretch) -> None:
        """A stretch of training begins."""
        self._queue(stretch, 1)

    def _queue(self, stretch: Stretch, count: int) -> None:
        if self._left:
            self._world.at(stretch.closed_s(count), self._look, stretch, count)

    def _look(self, stretch: Stretch, count: int) -> None:
        if self._world.stretch is not stretch:
            return
        self._left = max(0, self._left - 1)
        self._closed(stretch.after + count)
        self._queue(stretch, count + 1)

    def _remember(self, stretch: Stretch) -> None:
        """The detector saw the steps before: windows are counted from the beginning of the stretch."""
        count = stretch.closed_by(self._world.now_s)
        known = min(count, _MEMORY_STEPS + count % Rule().least_steps)
        for number in range(count - known + 1, count + 1):
            self._closed(stretch.after + number)

    def _closed(self, number: int) -> None:
        world = self._world
        places = {body.number: Place(seat=seat) for seat, body in sorted(world.seats.items())}
        own_s = {proc: self._own_s(place.seat) for proc, place in places.items()}
        for event in self._detector.closed(number, Step(own_s=own_s), places):
            world.note(event)
            if self._says_all(event):
                self._left = 0

    def _says_all(self, event: AnyEvent) -> bool:
        """Whether nothing more is to be seen until the next change."""
        if self._seat is None:
            return isinstance(event, StragglerEased)
        return isinstance(event, StragglerNamed) and self._seat in event.seats

    def _own_s(self, seat: int) -> float:
        slower = self._factor if seat == self._seat else 1.0
        return self._world.setup.step_s * slower * self._rng.lognormvariate(0.0, JITTER)
