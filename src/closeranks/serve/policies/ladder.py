"""The ladder of fallbacks: how much less is served, and when. Pure.

Level 0 is the full service. Each further level asks for less: fewer tools, a shorter context, fewer tokens, a smaller
model, an answer from the cache, a fixed answer. Latency, errors, queueing or a slow dependency lead down; the way up
is open only after a long time without any of them, and only through trials: a few requests, one at a time, are served
one level better, and must meet that level's target.

A fallback that was never used is a hope. So every level is exercised on a schedule, and is shown as unverified until
it has met its own target, which may be more modest than that of the full service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from closeranks.serve.policies.bounds import positive, within
from closeranks.serve.policies.hysteresis import Hysteresis, HysteresisSettings, Wish
from closeranks.serve.policies.window import Tally

SHARE_WINDOW_S: Final = 300.0
_TRIAL_LEASE_S: Final = 60.0
_UNVERIFIED_OFTENER: Final = 20  # times as often as the schedule says


class LevelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[ladder.level]]``: what is left out. A level that leaves nothing out is the full service."""

    name: str
    kind: Literal["model", "cached", "static"] = "model"
    tier: str = ""  # of the replicas that answer; empty: those without a tier
    model: str = ""  # asked for instead of the caller's
    drop_tools: bool = False
    messages: int = 0  # that are kept beside the system's, the last ones; 0: all
    max_tokens: int = 0  # at most; 0: as the caller asks
    results: int = 0  # choices, or documents of a ranking, at most; 0: as the caller asks
    answer: str = ""  # of a static level
    p99_s: float = 0.0  # its own target; 0: that of the ladder
    age_s: float = 3600.0  # of a cached answer, at most

    def __post_init__(self) -> None:
        within(self, 0, 1e9, "messages", "max_tokens", "results", "p99_s", "age_s")
        if (self.kind == "static") != bool(self.answer):
            raise ValueError('answer: expected one with kind "static", and with no other')


class LadderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[ladder]``. A limit of 0 is none."""

    p99_s: float = 0.0  # to the first byte
    error_rate: float = 0.1
    queue_s: float = 0.0
    dependency_s: float = 0.0
    margin: float = 0.7  # of each limit: below it all is well
    timing: HysteresisSettings = HysteresisSettings()
    passes: int = 3  # trials in a row that open the way up, and exercises that verify a level
    exercise_s: float = 600.0
    compare_share: float = 0.0  # of the whole answers of full service: had again from a level, to measure it
    level: tuple[LevelSettings, ...] = ()

    def __post_init__(self) -> None:
        within(self, 0, 1e9, "p99_s", "queue_s", "dependency_s")
        within(self, 0, 1, "error_rate", "margin", "compare_share")
        positive(self, "passes", "exercise_s")


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """What the ladder looks at; None is unknown, which neither leads down nor keeps from going up."""

    p99_s: float | None = None
    error_rate: float | None = None
    queue_s: float | None = None
    dependency_s: float | None = None


class Moved(msgspec.Struct, frozen=True):
    """The service has changed its level."""

    level: int
    name: str
    reason: str


class Course(msgspec.Struct, frozen=True):
    """How one request is served."""

    level: int
    trial: bool = False
    reason: str = ""  # why not in full


IN_FULL: Final = Course(0)


class LevelState(msgspec.Struct):
    """What is known of one level."""

    settings: LevelSettings
    served: int = 0
    met: int = 0  # in a row
    exercised_s: float = float("-inf")
    verified: bool = False
    compared: int = 0
    difference: float = 0.0  # from the full service's answers, the mean; 0: the same, 1: nothing in common


class Ladder:
    """The ladder of one process."""

    def __init__(self, settings: LadderSettings) -> None:
        self._settings = settings
        self.levels = [LevelState(LevelSettings(name="full")), *(LevelState(level) for level in settings.level)]
        self.level = 0
        self.forced: int | None = None
        self.reason = ""
        self._hysteresis = Hysteresis(settings.timing)
        self._open = False  # the way up: trials may be made
        self._trial_until_s = float("-inf")
        self._passed = 0
        self._all = Tally(SHARE_WINDOW_S)
        self._less = Tally(SHARE_WINDOW_S)

    # --- moving -----------------------------------------------------------------------------------------------------

    def signal(self, now_s: float, signals: Signals) -> Moved | None:
        """Look at the signals, about once a second; the step that was made."""
        if len(self.levels) == 1:
            return None
        complaint = self._over(signals, 1.0)
        wish = self._hysteresis.feel(now_s, bad=bool(complaint), good=not self._over(signals, self._settings.margin))
        if wish is Wish.DOWN and self.level < len(self.levels) - 1:
            return self._move(now_s, self.level + 1, complaint)
        self._open = wish is Wish.UP and self.level > 0
        return None

    def force(self, now_s: float, level: int | None) -> Moved | None:
        """An operator's word: this level until further notice; None: the ladder moves by itself again.

        Raises:
            ValueError: there is no such level; nothing has changed.
        """
        if level is not None and not 0 <= level < len(self.levels):
            raise ValueError(f"level: expected 0 to {len(self.levels) - 1}, got {level}")
        self.forced = level
        return None if level is None else self._move(now_s, level, "forced by the operator")

    def _move(self, now_s: float, level: int, reason: str) -> Moved:
        self._hysteresis.moved(now_s)
        self.level, self.reason = level, reason
        self._open, self._passed = False, 0
        return Moved(level, self.levels[level].settings.name, reason)

    def _over(self, signals: Signals, margin: float) -> str:
        settings = self._settings
        limit_s = self.levels[self.level].settings.p99_s or settings.p99_s
        for name, value, limit in (
            ("p99", signals.p99_s, limit_s),
            ("error rate", signals.error_rate, settings.error_rate),
            ("queue", signals.queue_s, settings.queue_s),
            ("dependency", signals.dependency_s, settings.dependency_s),
        ):
            if limit and value is not None and value > margin * limit:
                return f"{name} {value:.3g} is above {margin * limit:.3g}"
        return ""

    # --- requests ---------------------------------------------------------------------------------------------------

    def course(self, now_s: float, able: Callable[[LevelSettings], bool]) -> Course:
        """How the next request is served; ``able`` tells whether a level can serve at all at the moment."""
        if len(self.levels) == 1:
            return IN_FULL
        if self.forced is not None:
            return Course(self.forced, reason="forced by the operator")
        if self._open and now_s >= self._trial_until_s and able(self.levels[self.level - 1].settings):
            self._trial_until_s = now_s + _TRIAL_LEASE_S
            return Course(self.level - 1, trial=True, reason=self.reason if self.level > 1 else "")
        for level in range(self.level, len(self.levels)):
            if able(self.levels[level].settings):
                reason = (
                    self.reason if level == self.level else f"no replica for {self.levels[self.level].settings.name}"
                )
                return Course(level, reason=reason)
        return Course(self.level, reason=self.reason)

    def ended(self, now_s: float, course: Course, latency_s: float | None, *, less: bool = False) -> Moved | None:
        """A request was served so, its first byte after ``latency_s``; None: it was not served.

        ``less``: what its level gives was not given in full, for a reason of its own.
        """
        state = self.levels[course.level]
        met = self._judge(now_s, state, latency_s)
        if latency_s is not None:
            state.served += 1
            self._all.add(now_s)
            if course.level or less:
                self._less.add(now_s)
        if not course.trial or course.level != self.level - 1:
            return None
        self._trial_until_s = float("-inf")
        if not met:
            self._passed, self._open = 0, False
            self._hysteresis.moved(now_s)
            return None
        self._passed += 1
        if self._passed < self._settings.passes:
            return None
        return self._move(now_s, course.level, f"{self._passed} trials in a row met its target")

    def _judge(self, now_s: float, state: LevelState, latency_s: float | None) -> bool:
        """Note whether the level has met its target, and tell."""
        limit_s = state.settings.p99_s or self._settings.p99_s
        met = latency_s is not None and (not limit_s or latency_s <= limit_s)
        state.exercised_s = now_s
        state.met = state.met + 1 if met else 0
        state.verified = state.met >= self._settings.passes or (met and state.verified)
        return met

    # --- exercises --------------------------------------------------------------------------------------------------

    def due(self, now_s: float) -> tuple[int, ...]:
        """The levels that are to be exercised now, by a request of the gateway's own."""
        return tuple(
            number for number, state in enumerate(self.levels) if number != self.level and self._is_due(now_s, state)
        )

    def _is_due(self, now_s: float, state: LevelState) -> bool:
        if 0 < state.met < self._settings.passes:
            return True  # it is about to be verified
        pause_s = self._settings.exercise_s / (1 if state.verified else _UNVERIFIED_OFTENER)
        return now_s >= state.exercised_s + pause_s

    def exercised(self, now_s: float, level: int, latency_s: float | None) -> None:
        """An exercise was answered after ``latency_s``; None: it was not."""
        self._judge(now_s, self.levels[level], latency_s)

    # --- numbers ----------------------------------------------------------------------------------------------------

    def compared(self, level: int, difference: float) -> None:
        """An answer of this level was compared with the full service's: 0 is the same, 1 has nothing in common.

        Raises:
            ValueError: ``difference`` is not within 0 and 1; nothing was counted.
        """
        if not 0 <= difference <= 1:
            raise ValueError(f"difference: expected 0 to 1, got {difference}")
        state = self.levels[level]
        state.compared += 1
        state.difference += (difference - state.difference) / state.compared

    def degraded_share(self, now_s: float) -> float:
        """The share of the latest requests that were not served in full."""
        every = self._all.total(now_s)
        return self._less.total(now_s) / every if every else 0.0
