"""What the checks and the traffic together say about one replica. Pure: the checks are carried out elsewhere.

Three checks, each with its own run of failures and passes: *liveness* (does the process answer), *readiness* (is the
model loaded; do what it depends on answer) and the *known answer* (does a request of the gateway's own run to its
end, with the very tokens that it always had). A replica is down as soon as one of them has failed ``fall`` times in
a row, and up again when it has passed ``rise`` times in a row. A first check counts at once.

The traffic adds what no interval can: a request that stalled or found nobody makes the replica doubtful in the same
instant, and whatever it answers afterwards takes the doubt away.

A replica that is busy misses the time of a check, too. It is wedged only if it has sent *nothing to anybody* since
the check began. A pass, however, is only ever the check's own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from closeranks.serve.policies.bounds import positive, within
from closeranks.serve.words import Outcome

FAULTS: Final = frozenset({Outcome.SLOW, Outcome.UNREACHED, Outcome.BROKEN})
"""Outcomes that make a replica doubtful."""


class Check(StrEnum):
    """What is asked."""

    LIVENESS = "liveness"
    READINESS = "readiness"
    KNOWN_ANSWER = "known answer"


class Finding(StrEnum):
    """What came of it."""

    PASS = "pass"  # noqa: S105 - the name of a verdict
    FAIL = "fail"  # refused, an error, not ready
    TIMEOUT = "timeout"
    WRONG = "wrong answer"


class Grade(StrEnum):
    """How far a replica is trusted."""

    UP = "up"
    DOUBTFUL = "doubtful"
    DOWN = "down"


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[health]``."""

    interval_s: float = 5.0
    timeout_s: float = 2.0
    fall: int = 3
    rise: int = 2
    busy_max: int = 20  # checks in a row that a replica may miss because it is busy
    doubt_s: float = 5.0  # how long doubt lasts where no check can end it

    def __post_init__(self) -> None:
        positive(self, "interval_s", "timeout_s", "fall", "rise")
        within(self, 0, 1e6, "busy_max", "doubt_s")


class Standing(msgspec.Struct, frozen=True):
    """The judgement, and what it rests on."""

    grade: Grade
    reason: str = ""


class _Row:
    """One check's latest findings."""

    def __init__(self) -> None:
        self.down = ""  # why; empty: up
        self.known = False
        self.fails = self.passes = self.busy = 0
        self.began_s: float | None = None
        self.due_s = 0.0


class Judge:
    """The judge of one replica."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._rows: dict[Check, _Row] = {}
        self._heard_s = float("-inf")
        self._doubt = ""
        self._doubt_s = 0.0
        self.spotless = True  # neither down nor in doubt: what nearly every request finds

    def retune(self, settings: HealthSettings) -> None:
        """Other settings from now on; the judgement stays."""
        self._settings = settings

    # --- checks -----------------------------------------------------------------------------------------------------

    def due(self, now_s: float, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """Which of these checks are to begin now. A check never begins before its last one has ended."""
        rows = [(check, self._rows.get(check)) for check in checks]
        return tuple(check for check, row in rows if row is None or (row.began_s is None and now_s >= row.due_s))

    def began(self, now_s: float, check: Check) -> None:
        """A check goes out."""
        row = self._rows.setdefault(check, _Row())
        row.began_s, row.due_s = now_s, now_s + self._settings.interval_s

    def found(self, now_s: float, check: Check, finding: Finding, detail: str = "") -> bool:
        """A check has ended.

        Returns:
            Whether this has changed the judgement from up to down or back.
        """
        row = self._rows.setdefault(check, _Row())
        began_s, row.began_s = row.began_s, None
        before = row.down
        if finding is Finding.PASS:
            self._passed(row)
            if self._doubt and began_s is not None and began_s >= self._doubt_s and check is not Check.LIVENESS:
                self._doubt = ""  # a frozen engine may well answer a ping
        elif finding is Finding.TIMEOUT and self._is_busy(row, began_s):
            row.busy += 1
        else:
            self._failed(now_s, row, f"{check}: {detail or finding}")
        self._look()
        return bool(before) != bool(row.down)

    def _is_busy(self, row: _Row, began_s: float | None) -> bool:
        return began_s is not None and self._heard_s > began_s and row.busy < self._settings.busy_max

    def _passed(self, row: _Row) -> None:
        row.passes, row.fails, row.busy = row.passes + 1, 0, 0
        if not row.known or row.passes >= self._settings.rise:
            row.down = ""
        row.known = True

    def _failed(self, now_s: float, row: _Row, reason: str) -> None:
        row.fails, row.passes = row.fails + 1, 0
        if not row.known or row.fails >= self._settings.fall:
            row.down = reason
        elif not row.down:
            row.due_s = min(row.due_s, now_s + self._settings.timeout_s)  # look again soon
        row.known = True

    # --- traffic ----------------------------------------------------------------------------------------------------

    def heard(self, now_s: float) -> None:
        """It has sent something to somebody."""
        self._heard_s = now_s
        if self._doubt:
            self._doubt = ""
            self._look()

    def outcome(self, now_s: float, outcome: Outcome) -> None:
        """An attempt has ended; only ``FAULTS`` say something."""
        if outcome in FAULTS:
            self._doubt, self._doubt_s = f"a request was {outcome}", now_s
            self.spotless = False

    # --- the judgement ----------------------------------------------------------------------------------------------

    def grade(self, now_s: float) -> Grade:
        """How far it is trusted."""
        if self.spotless:
            return Grade.UP
        for row in self._rows.values():
            if row.down:
                return Grade.DOWN
        if not self._doubt:
            return Grade.UP
        if not self._checked() and now_s >= self._doubt_s + self._settings.doubt_s:
            self._doubt = ""
            self._look()
            return Grade.UP
        return Grade.DOUBTFUL

    def _look(self) -> None:
        self.spotless = not self._doubt and not any(row.down for row in self._rows.values())

    def _checked(self) -> bool:
        return Check.KNOWN_ANSWER in self._rows or Check.READINESS in self._rows

    def standing(self, now_s: float) -> Standing:
        """The grade, with its reason."""
        grade = self.grade(now_s)
        if grade is Grade.DOWN:
            return Standing(grade, next(row.down for row in self._rows.values() if row.down))
        return Standing(grade, self._doubt)
