"""Many moments, nearly all of which are cancelled before they come, on one timer of the loop.

A timer of the loop costs several microseconds, and every request has a moment by which something is due. Here a moment
is a member of a set, one set for each step of time; the loop's timer waits for the earliest set that is not empty.
Nothing happens too early; what is near happens within ``STEP_S``, what is far within sixteen times as much.

Source: Varghese & Lauck, "Hashed and Hierarchical Timing Wheels", 1987 (scheme 5, with a heap of the steps in use).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

STEP_S: Final = 0.005
_FAR_S: Final = 2.0
_NEVER_S: Final = 1e6
_FAR_BITS: Final = 15  # set in the number of a far step: it is the last of sixteen


def _nothing() -> None:
    """What is done in the place of what was cancelled."""


class Due:
    """Something that is due at a moment."""

    __slots__ = ("_step", "do", "when_s")

    def __init__(self, when_s: float, do: Callable[[], None], step: set[Due]) -> None:
        self.when_s = when_s
        self.do = do
        self._step = step
        step.add(self)

    def cancel(self) -> None:
        """It will not be done."""
        self._step.discard(self)
        self.do = _nothing  # what it would have done knows it: without this only the collector could free the two


class Wheel:
    """The moments of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: dict[int, set[Due]] = {}
        self._numbers: list[int] = []  # a heap of their keys
        self._armed: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def at(self, when_s: float, do: Callable[[], None]) -> Due:
        """Call ``do`` then, on the loop's clock."""
        now_s = self._loop.time()
        if when_s > now_s + _FAR_S:
            number = (int(min(when_s, now_s + _NEVER_S) / STEP_S) + 1) | _FAR_BITS
        else:
            number = int(max(when_s, now_s) / STEP_S) + 1
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = set()
            heappush(self._numbers, number)
            self._arm(number)
        return Due(when_s, do, step)

    def close(self) -> None:
        """Nothing is done any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._steps.clear()
        self._numbers.clear()

    def _arm(self, number: int) -> None:
        """See to it that this step comes, if none before it will."""
        if self._armed is not None and number >= self._armed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed = number
        self._timer = self._loop.call_at(number * STEP_S, self._turn)

    def _turn(self) -> None:
        self._armed = self._timer = None
        now_s = self._loop.time()
        numbers, steps = self._numbers, self._steps
        while numbers and (numbers[0] * STEP_S <= now_s or not steps[numbers[0]]):
            step = steps.pop(heappop(numbers))
            while step:
                self._do(step.pop())
        if numbers:
            self._arm(numbers[0])

    def _do(self, due: Due) -> None:
        try:
            due.do()
        except Exception as error:
            self._loop.call_exception_handler({"message": f"at {due.when_s:.3f}: {due.do}", "exception": error})
