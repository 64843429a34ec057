"""When to step down and when to try the way up again, without swinging between the two. Pure.

Down needs a signal that stays bad for ``worse_s``; up needs one that stays *clearly* good, with a margin, for
``better_s``; and after any move nothing moves for ``dwell_s``. What is neither bad nor good breaks both runs.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from closeranks.serve.policies.bounds import within


class Wish(Enum):
    """What the signals ask for."""

    STAY = 0
    DOWN = 1
    UP = -1


class HysteresisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long is long enough, in seconds."""

    worse_s: float = 3.0
    better_s: float = 30.0
    dwell_s: float = 10.0

    def __post_init__(self) -> None:
        within(self, 0, 1e9, "worse_s", "better_s", "dwell_s")


class Hysteresis:
    """One signal's memory."""

    def __init__(self, settings: HysteresisSettings) -> None:
        self._settings = settings
        self._bad_since_s: float | None = None
        self._good_since_s: float | None = None
        self._moved_s = float("-inf")

    def feel(self, now_s: float, *, bad: bool, good: bool) -> Wish:
        """The signal is now bad, good, or neither."""
        if not bad:
            self._bad_since_s = None
        elif self._bad_since_s is None:
            self._bad_since_s = now_s
        if bad or not good:
            self._good_since_s = None
        elif self._good_since_s is None:
            self._good_since_s = now_s
        settings = self._settings
        if now_s < self._moved_s + settings.dwell_s:
            return Wish.STAY
        if self._bad_since_s is not None and now_s >= self._bad_since_s + settings.worse_s:
            return Wish.DOWN
        if self._good_since_s is not None and now_s >= self._good_since_s + settings.better_s:
            return Wish.UP
        return Wish.STAY

    def moved(self, now_s: float) -> None:
        """A step was made, or the way up was tried in vain: both runs begin anew."""
        self._moved_s = now_s
        self._bad_since_s = self._good_since_s = None
