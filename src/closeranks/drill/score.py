"""What one cell of the drill matrix proved: from the journal of a run to marks with reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from closeranks.drill.expected import Expected
from closeranks.drill.signs import INCIDENT, Sign, signs_in
from closeranks.drill.verdict import Evidence, Outcome, differences
from closeranks.events import Decided, Diagnosed, FaultInjected, IncidentClosed, ProcessSeated, Record, Rung

_FROM_SCRATCH: Final = frozenset({Rung.COLD_RESTART, Rung.ROLL_BACK, Rung.SHRINK})  # every seat gets a new process


class Mark(StrEnum):
    """Of one question."""

    RIGHT = "right"
    WRONG = "wrong"
    NOBODY = "nothing named"
    NOT_ASKED = "not asked"


class Effect(StrEnum):
    """What became of an injection."""

    RECOVERED = "recovered"  # it was seen, and the run ended as if nothing had been
    MASKED = "masked"  # it was not seen, changed nothing, and need not be seen then
    UNSEEN = "unseen"  # it was not seen, and should have been, though the result is the same
    UNNOTICED = "unnoticed harm"  # it was not seen, and the result is another one
    HARMFUL = "harm"  # it was seen, and the result is another one all the same
    STOPPED = "stopped"  # the run ended without a result
    LEFT_ALONE = "left alone"  # a control that nothing was done about
    DISTURBED = "disturbed"  # a control that something was done about
    NEVER_STRUCK = "never struck"


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds count from the strike; None: it did not happen."""

    outcome: Outcome
    effect: Effect
    reasons: tuple[str, ...] = ()
    detected_s: float | None = None
    detector: str = ""
    diagnosed_s: float | None = None
    recovered_s: float | None = None  # to the close of the first new step
    culprit: Mark = Mark.NOT_ASKED
    named: tuple[int, ...] = ()
    diagnosis: Mark = Mark.NOT_ASKED
    said: str = ""  # the fault that was named, or the warning
    action: Mark = Mark.NOT_ASKED
    actions: tuple[str, ...] = ()
    steps_lost: int = 0
    equal: bool | None = None  # None: there was no end to compare
    rpo_steps: int = 0  # promised
    rto_s: float = 0.0  # promised
    kept: bool = False  # both promises
    replaced: tuple[int, ...] = ()  # seats that lost their process though nothing had struck them
    quarantined: tuple[str, ...] = ()  # nodes


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a cell's fault struck, and all that were struck in its run."""

    seat: int
    all_seats: tuple[int, ...]
    control: bool = False


def score(expected: Expected, struck: Struck, undisturbed: Evidence, drilled: Evidence) -> Score:
    """Judge one run. ``drilled`` holds a ``FaultInjected`` for each strike; the cell's own is the last one."""
    strike = next((r for r in reversed(drilled.records) if isinstance(r.event, FaultInjected)), None)
    why = ""
    if strike is None or not _is_of(strike, struck):
        why = "the fault never struck" if strike is None else "the fault never struck: the one before it did"
    elif undisturbed.exit_code != 0 or not undisturbed.finals:
        why = f"nothing to compare with: the undisturbed run ended with {undisturbed.exit_code}"
    if strike is None or why:
        return Score(
            outcome=Outcome.UNKNOWN,
            effect=Effect.NEVER_STRUCK,
            reasons=(why,),
            rpo_steps=expected.rpo_steps,
            rto_s=expected.rto_s,
        )
    return _judged(expected, struck, _Seen(strike, undisturbed, drilled, names=expected.culprit))


class _Seen:
    """What a run shows from its strike on."""

    def __init__(self, strike: Record, undisturbed: Evidence, drilled: Evidence, *, names: bool) -> None:
        """``names``: somebody has to be named, so a diagnosis that names nobody gives way to one that does."""
        self.at_s = strike.mono_s
        self.records = tuple(r for r in drilled.records if r.mono_s >= self.at_s and r is not strike)
        self.exit_code = drilled.exit_code
        self.signs = signs_in(self.records)
        self.ended = drilled.exit_code is not None and bool(drilled.finals)
        self.differences = differences(undisturbed, drilled) if self.ended else []
        diagnosed = list(self.of(Diagnosed))
        naming = [record for record in diagnosed if record.event.culprits] if names else []
        self.diagnosed = next(iter(naming or diagnosed), None)
        self.closed = [record.event for record in self.of(IncidentClosed)]
        self.rungs = tuple(dict.fromkeys(record.event.rung for record in self.of(Decided)))

    def of(self, kind: type[Any]) -> Iterator[Any]:
        """Records of one kind of event."""
        return (record for record in self.records if isinstance(record.event, kind))

    def recovered_s(self) -> float | None:
        """From the strike to the first new step after the incident that was closed last."""
        took = [
            record.mono_s - self.at_s for record in self.of(IncidentClosed) if record.event.first_step_s is not None
        ]
        return max(took, default=None)

    def replaced(self, struck: tuple[int, ...]) -> tuple[int, ...]:
        """Seats that got a new process though nothing had struck them, restarts of the whole group left aside."""
        if _FROM_SCRATCH & set(self.rungs):
            return ()
        seated = [record.event for record in self.of(ProcessSeated)]
        return tuple(sorted({e.seat for e in seated if e.incarnation > 1 and e.seat not in struck}))

    def quarantined(self) -> tuple[str, ...]:
        """Nodes that were kept out."""
        return tuple(sign.node for sign in self.signs if sign.node)


def _judged(expected: Expected, struck: Struck, seen: _Seen) -> Score:
    first = seen.signs[0] if seen.signs else None
    named, said, culprit, diagnosis = _naming(expected, struck, seen)
    action = _action(expected, struck, seen)
    lost = sum(event.steps_lost for event in seen.closed)
    recovered_s = seen.recovered_s()
    equal = None if not seen.ended else not seen.differences
    effect = _effect(expected, struck, seen, equal=equal)
    masked = effect is Effect.MASKED
    kept = (
        equal is True
        and effect is not Effect.UNSEEN
        and lost <= expected.rpo_steps
        and (recovered_s or 0.0) <= expected.rto_s
    )
    reasons = [*_promises(expected, seen, lost, recovered_s), *seen.differences[:2]]
    if not masked and not struck.control:
        reasons += _late(expected, seen, first)
        reasons += [f"culprit: expected seat {struck.seat}, got {list(named) or 'nobody'}"] * _bad(culprit)
        reasons += [f"diagnosis: expected {_wanted(expected)}, got {said or 'none'}"] * _bad(diagnosis)
    reasons += [f"action: got {', '.join(seen.rungs) or 'none'}"] * _bad(action)
    replaced = seen.replaced(struck.all_seats)
    reasons += [f"seats {list(replaced)} lost their process, and nothing had struck them"] * bool(replaced)
    return Score(
        outcome=Outcome.BROKEN if reasons else Outcome.HELD,
        effect=effect,
        reasons=tuple(reasons),
        detected_s=None if first is None else first.mono_s - seen.at_s,
        detector=next((sign.detector for sign in seen.signs if sign.detector != INCIDENT), INCIDENT if first else ""),
        diagnosed_s=None if seen.diagnosed is None else seen.diagnosed.mono_s - seen.at_s,
        recovered_s=recovered_s,
        culprit=culprit,
        named=named,
        diagnosis=diagnosis,
        said=said,
        action=action,
        actions=seen.rungs,
        steps_lost=lost,
        equal=equal,
        rpo_steps=expected.rpo_steps,
        rto_s=expected.rto_s,
        kept=kept,
        replaced=replaced,
        quarantined=seen.quarantined(),
    )


def _naming(expected: Expected, struck: Struck, seen: _Seen) -> tuple[tuple[int, ...], str, Mark, Mark]:
    """Who was named, as what, and whether that is right."""
    diagnosed = None if seen.diagnosed is None else seen.diagnosed.event
    warned = [sign for sign in seen.signs if not sign.of_incident]
    fitting = next((sign for sign in warned if any(word in sign.text.lower() for word in _lower(expected.said))), None)
    fault = "" if diagnosed is None else diagnosed.fault
    right = fault in expected.faults or fitting is not None
    said = fitting.text if fitting is not None and fault not in expected.faults else fault or _text(warned)
    named = tuple(diagnosed.culprits) if diagnosed is not None else _seats(fitting or next(iter(seen.signs), None))
    asked = bool(expected.faults or expected.said)
    diagnosis = Mark.NOT_ASKED if not asked or struck.control else _mark(right=right, anything=bool(said))
    culprit = Mark.NOT_ASKED
    if expected.culprit and not struck.control:
        culprit = _mark(right=named == (struck.seat,), anything=bool(named))
    return named, said, culprit, diagnosis


def _action(expected: Expected, struck: Struck, seen: _Seen) -> Mark:
    if struck.control or not expected.rungs:
        return Mark.WRONG if seen.rungs else Mark.RIGHT
    if not seen.rungs:  # what was not seen at all is said by the detection
        return Mark.NOBODY if seen.signs and Rung.WAIT not in expected.rungs else Mark.NOT_ASKED
    return Mark.RIGHT if set(seen.rungs) <= set(expected.rungs) else Mark.WRONG


def _effect(expected: Expected, struck: Struck, seen: _Seen, *, equal: bool | None) -> Effect:
    acted = bool(seen.rungs)
    if struck.control:
        return Effect.LEFT_ALONE if equal and not acted else Effect.DISTURBED
    if equal is None:
        return Effect.STOPPED
    if seen.signs:
        return Effect.RECOVERED if equal else Effect.HARMFUL
    unseen = Effect.MASKED if expected.maskable else Effect.UNSEEN
    return unseen if equal else Effect.UNNOTICED


def _promises(expected: Expected, seen: _Seen, lost: int, recovered_s: float | None) -> list[str]:
    broken = []
    if seen.exit_code not in expected.exit_codes:
        ended = "did not end in time" if seen.exit_code is None else f"ended with {seen.exit_code}"
        broken.append(f"the run {ended}, expected {' or '.join(map(str, expected.exit_codes))}")
    if lost > expected.rpo_steps:
        broken.append(f"RPO: {lost} steps were lost, promised {expected.rpo_steps}")
    if (recovered_s or 0.0) > expected.rto_s > 0:
        broken.append(f"RTO: {recovered_s:.1f} s to the first new step, promised {expected.rto_s:g} s")
    return broken


def _late(expected: Expected, seen: _Seen, first: Sign | None) -> list[str]:
    if first is None:
        return ["nothing was detected"]
    took_s = first.mono_s - seen.at_s
    return [f"detected after {took_s:.1f} s, promised {expected.detect_s:g} s"] * (took_s > expected.detect_s)


def _is_of(strike: Record, struck: Struck) -> bool:
    return isinstance(strike.event, FaultInjected) and strike.event.seat == struck.seat


def _mark(*, right: bool, anything: bool) -> Mark:
    return Mark.RIGHT if right else Mark.WRONG if anything else Mark.NOBODY


def _bad(mark: Mark) -> bool:
    return mark in (Mark.WRONG, Mark.NOBODY)


def _wanted(expected: Expected) -> str:
    return " or ".join([*expected.faults, *(f'"{word}"' for word in expected.said)])


def _lower(words: Sequence[str]) -> list[str]:
    return [word.lower() for word in words]


def _text(signs: Sequence[Sign]) -> str:
    return signs[0].text if signs else ""


def _seats(sign: Sign | None) -> tuple[int, ...]:
    return () if sign is None else sign.seats
