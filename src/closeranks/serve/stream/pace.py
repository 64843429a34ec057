"""How long a stream may be silent before its replica counts as gone, learned from the stream itself. Pure.

A stream's gaps are short and even as long as its replica lives: one token after another. A deadline that is a multiple
of nearly all of them, with a floor for the scheduler of a busy machine, tells a frozen replica from a slow one within
a few tokens' time, whatever the model's speed. Before a stream has shown its pace, that of all streams of its model
counts.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

GAPS_LEAST: Final = 8
GAPS_KEPT: Final = 64
_QUANTILE: Final = 0.9


class PaceLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[stall]``, in seconds."""

    factor: float = 8.0  # times the gap that nine in ten stay below
    floor_s: float = 0.3
    ceiling_s: float = 15.0
    unlearned_s: float = 5.0  # of the first stream of a model


class Gaps:
    """The latest gaps, of one stream or of all streams of a model."""

    def __init__(self) -> None:
        self._gaps_s: deque[float] = deque(maxlen=GAPS_KEPT)

    def add(self, gap_s: float) -> None:
        """One more."""
        self._gaps_s.append(gap_s)

    def allowed_s(self, limits: PaceLimits) -> float | None:
        """The silence that they allow; None while there are too few."""
        if len(self._gaps_s) < GAPS_LEAST:
            return None
        ordered = sorted(self._gaps_s)
        usual_s = ordered[int(_QUANTILE * (len(ordered) - 1))]
        return min(max(limits.factor * usual_s, limits.floor_s), limits.ceiling_s)


class Pace:
    """One stream's pace."""

    def __init__(self, limits: PaceLimits, model: Gaps) -> None:
        self._limits = limits
        self._model = model
        self._own = Gaps()
        self._last_s = 0.0
        self.flows = False  # the replica has sent its first token

    def restart(self) -> None:
        """A replica begins; what it needs for its first token is no gap."""
        self._last_s, self.flows = 0.0, False

    def heard(self, now_s: float) -> None:
        """Something came."""
        if self._last_s and self.flows:
            gap_s = now_s - self._last_s
            self._own.add(gap_s)
            self._model.add(gap_s)
        self._last_s = now_s

    def allowed_s(self) -> float:
        """How long it may be silent."""
        for gaps in (self._own, self._model):
            if (allowed_s := gaps.allowed_s(self._limits)) is not None:
                return allowed_s
        return self._limits.unlearned_s
