"""The real detectors of stuck processes over virtual vitals: how long one stays unseen, and what is said of it.

Who stands still in a step is missed by the progress detector, when a deadline is over that it has learned; who is
frozen as a whole, whatever it was doing, by the roll call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from closeranks.decide.diagnosis import NO_ANSWER
from closeranks.detect import progress, roll_call
from closeranks.detect.progress import Bounds, Suspect, Verdict, Watch
from closeranks.operations import CODES
from closeranks.signs import Doing, Reading

LOOK_S: Final = 0.05  # between two looks of a supervisor
ANSWER_S: Final = 0.3  # until a question counts as not answered
_LEARNING_STEPS: Final = 26  # enough for the detector to have learned a deadline
_BYTES: Final = 2**20
_FROZEN: Final = f"its control thread {NO_ANSWER}, it is idle"
_BLOCKED: Final = "its control thread answers, it is idle"


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor reports of a stuck process, and when."""

    after_s: float  # since it fell silent
    detail: str
    silent_s: float
    allowed_s: float


def _reading(at_s: float, step: int, *, waits: bool, rehearsed_s: float) -> Reading:
    return Reading(
        moved_ns=round(at_s * 1e9),
        doing=Doing.BACKWARD,
        term=1,
        step=step,
        attempt=0,
        closed_step=step - 1,
        entered=step + waits,
        returned=step,
        operation=CODES["allreduce"],
        operation_bytes=_BYTES,
        section_hash=0,
        own_ns=0,
        loss=0.0,
        grad_norm=0.0,
        rehearsed_ns=round(rehearsed_s * 1e9),
    )


@lru_cache(maxsize=256)
def _taught(bounds: Bounds, step_s: float, steps: int) -> Watch:
    """The detector after it saw two processes close so many steps."""
    watch = Watch(bounds=bounds)
    for step in range(steps + 1):
        at_s = step * step_s
        readings = {proc: _reading(at_s, step, waits=True, rehearsed_s=step_s) for proc in (0, 1)}
        watch, _ = progress.observe(watch, readings, round(at_s * 1e9))
    return watch


@lru_cache(maxsize=256)
def roll_call_of(bounds: Bounds) -> Sighting:
    """How a process that froze is found, in any phase. It had just moved: one that had not is found sooner."""
    roll, now_s = roll_call.Roll(bounds=bounds), 0.0
    readings, silent = {0: _reading(0.0, 0, waits=False, rehearsed_s=0.0)}, roll_call.Answer(answered=False, busy=False)
    while True:
        now_s += LOOK_S
        roll, calls = roll_call.look(roll, readings, round(now_s * 1e9))
        if calls:
            now_s += 2 * ANSWER_S  # whoever does not answer is asked again, and looked at meanwhile
            roll, frozen = roll_call.heard(roll, {0: silent}, round(now_s * 1e9))
            for found in frozen:
                return Sighting(after_s=now_s, detail=_FROZEN, silent_s=found.silent_s, allowed_s=found.allowed_s)


@lru_cache(maxsize=256)
def sight(bounds: Bounds, step_s: float, steps: int, *, answers: bool = False) -> Sighting:
    """How a process that hangs in a step is found by its progress, ``steps`` steps after its group began.

    Two processes stand for all: one that hangs outside of the collective, and one that waits for it inside.
    """
    known = min(steps, _LEARNING_STEPS)
    watch = _taught(bounds, step_s, known)
    begin_s = known * step_s
    readings = {
        0: _reading(begin_s, known, waits=False, rehearsed_s=step_s),
        1: _reading(begin_s, known, waits=True, rehearsed_s=step_s),
    }
    watch, _ = progress.observe(watch, readings, round(begin_s * 1e9))
    allowed_s = progress.allowed(watch, 0)
    looked_s = allowed_s + LOOK_S
    watch, findings = progress.observe(watch, readings, round((begin_s + looked_s) * 1e9))
    suspect = next(found for found in findings if isinstance(found, Suspect) and found.proc == 0)
    _, verdict, _ = progress.confirm(watch, 0, answered=answers, busy=False)
    if verdict is not (Verdict.BLOCKED if answers else Verdict.STUCK):
        raise AssertionError(f"a silent process is judged {verdict}")
    return Sighting(
        after_s=looked_s + ANSWER_S,
        detail=_BLOCKED if answers else _FROZEN,
        silent_s=suspect.silent_s,
        allowed_s=suspect.allowed_s,
    )
