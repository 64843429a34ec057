"""How quickly the job does steps: from one close to the next, what lies between two blocks included.

A step's own duration, from its opening to its close, says nothing of that where a script loads its data before it
opens the block: words that have to arrive in time would be given twenty times the steps that they need, or more. Nor
does the shortest period: a host that queues work for its device closes a few steps at once now and then.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

_KEPT: Final = 32  # newest steps


class Cadence:
    """The newest periods of steps."""

    def __init__(self) -> None:
        self._periods_s: deque[float] = deque(maxlen=_KEPT)

    def add(self, period_s: float) -> None:
        """A step was closed so long after the one before; 0: unknown."""
        if period_s > 0:
            self._periods_s.append(period_s)

    def steps_in(self, seconds: float) -> float:
        """How many steps the job usually does in that time; 0 before anything is known."""
        return seconds / statistics.median(self._periods_s) if self._periods_s else 0.0
