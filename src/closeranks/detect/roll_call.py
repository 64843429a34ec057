"""Roll call: who is frozen as a whole, whatever it was doing.

How long work may take depends on what it is, and may be unknown: in start-up, in a section that is not learned yet, in
a recovery, after the last step. But a process at work, however slow, has a control thread that answers, or uses the
processor or the disk. One that does neither is stopped, or a thread of it sleeps with the interpreter's lock. So
whoever has not moved for a while is asked now and then. Its answer, a look at what it uses, is ``heard``; two looks in
a row without any sign of life are a verdict. One that computes with the lock held is left to the deadline of its phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from closeranks.detect.progress import Bounds
from closeranks.signs import SAME_CLOCK, Reading

_AGAIN_NS: Final = 1_000_000_000  # between the looks: a machine that stops for a moment stops one of them
_LATE_NS: Final = 1_000_000_000  # who looks so late did not run itself, and knows nothing of the others meanwhile
_LOOKS: Final = 2


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Ask this process for an answer, look whether it uses anything if there is none, and call ``heard``."""

    proc: int


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """No thread of this process runs. ``silent_s`` counts from its last sign of life, a move or an answer."""

    proc: int
    silent_s: float
    allowed_s: float


class Answer(NamedTuple):
    """What came of a call: whether the process answered, and if not, whether it used processor or disk."""

    answered: bool
    busy: bool


class _Silence(msgspec.Struct, frozen=True, kw_only=True):
    """One process since its last move."""

    moved_ns: int
    alive_ns: int  # its newest sign of life
    asked_ns: int = 0
    waits: bool = False  # for the answer
    misses: int = 0  # looks in a row without a sign of life
    told: bool = False


class Roll(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the roll call: of those that move there is none."""

    bounds: Bounds = Bounds()
    looked_ns: int = 0
    woke_ns: int = 0  # the last look that came late
    silences: Mapping[int, _Silence] = {}


def look(
    roll: Roll, readings: Mapping[int, Reading], now_ns: int, behind_ns: Mapping[int, int] = SAME_CLOCK
) -> tuple[Roll, tuple[Call, ...]]:
    """Whom to ask now, of all processes that live and have begun to listen; call it every 50 ms or so.

    ``behind_ns``: by process, what its clock is behind that of ``now_ns``, and always was; 0 if it is not named.
    A look that comes late, after a suspension or under a debugger, starts every silence anew.
    """
    if _is_late(roll, now_ns):
        told = {proc: silence for proc, silence in roll.silences.items() if silence.told}
        roll = replace(roll, woke_ns=now_ns, silences=told)
    patience_ns = round(roll.bounds.patience_s * 1e9)
    silences: dict[int, _Silence] = {}
    calls: list[Call] = []
    for proc, reading in readings.items():
        moved_ns = reading.moved_ns + behind_ns.get(proc, 0)
        if now_ns - moved_ns < patience_ns:  # nearly all of them, and there may be thousands
            continue
        silence = roll.silences.get(proc)
        if silence is None or silence.moved_ns != moved_ns:
            since_ns = max(moved_ns, roll.woke_ns)
            if now_ns - since_ns < patience_ns:
                continue
            silence = _Silence(moved_ns=moved_ns, alive_ns=since_ns)
        if _is_due(silence, now_ns, patience_ns):
            calls.append(Call(proc=proc))
            silence = replace(silence, asked_ns=now_ns, waits=True)
        silences[proc] = silence
    return replace(roll, looked_ns=now_ns, silences=silences), tuple(calls)


def heard(roll: Roll, answers: Mapping[int, Answer], now_ns: int) -> tuple[Roll, tuple[Frozen, ...]]:
    """What came of calls, by process. Nothing is told of those that went on meanwhile, or if the asker did not run.

    Thousands may be asked at once: tell what came of them together, for each call of this copies the memory.
    """
    if not answers or _is_late(roll, now_ns):
        return roll, ()
    silences = dict(roll.silences)
    frozen: list[Frozen] = []
    for proc, answer in answers.items():
        silence = silences.get(proc)
        if silence is None or not silence.waits:
            continue
        if answer.answered or answer.busy:
            silences[proc] = _Silence(moved_ns=silence.moved_ns, alive_ns=now_ns)
            continue
        misses = silence.misses + 1
        told = misses >= _LOOKS
        silences[proc] = replace(silence, waits=False, misses=misses, told=told)
        if told:
            silent_s = (now_ns - silence.alive_ns) / 1e9
            frozen.append(Frozen(proc=proc, silent_s=silent_s, allowed_s=roll.bounds.patience_s))
    return replace(roll, silences=silences), tuple(frozen)


def _is_due(silence: _Silence, now_ns: int, patience_ns: int) -> bool:
    if silence.told:
        return False
    if silence.waits:  # the question or its answer may have been lost with a connection
        return now_ns - silence.asked_ns >= patience_ns
    if silence.misses:
        return now_ns - silence.asked_ns >= _AGAIN_NS
    return now_ns - silence.alive_ns >= patience_ns


def _is_late(roll: Roll, now_ns: int) -> bool:
    return roll.looked_ns != 0 and now_ns - roll.looked_ns > _LATE_NS
