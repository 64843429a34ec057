"""What becomes of an attempt before it is applied: a pure function of what all seats found in it.

Every seat computes the ruling by itself, from the same evidence and the same memory, so all come to the same one. A
suspect attempt is held: its traces are undone and the step is repeated with the same data, state and random numbers.
What the second attempt shows decides: apply it, skip the step, or wait for the supervisor to replace a seat.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from closeranks.decide import spot_check
from closeranks.detect.corruption import Evidence, Judgement, Verdict, judge, vote
from closeranks.detect.numerics import (
    RESPONSES,
    Action,
    Finding,
    Signature,
    data_findings,
    findings,
    largest_norm,
    remember,
)

_ROUNDS_MAX = 4
_SKIPS_WITHIN = 100  # steps


class Level(StrEnum):
    """How much is looked at in each step."""

    OFF = "off"
    BASIC = "basic"  # norms before the reduction, digests of the state now and then
    FULL = "full"  # also digests of all gradients, before and after the reduction


class Guard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How attempts are watched before they are applied, and what answers what a replay confirms.

    ``non_finite`` and ``outlier`` are what is done about a step that shows the same again: ``SKIP`` closes it without
    its update, ``GO_ON`` applies it, ``STOP`` ends the run, ``ROLL_BACK`` goes back to the last verified checkpoint.
    """

    level: Level = Level.BASIC
    non_finite: Action = RESPONSES[Signature.NON_FINITE].then
    outlier: Action = RESPONSES[Signature.OUTLIER].then
    skips_max: int = 3  # in any hundred steps; one more ends the run
    elsewhere: bool = False  # let another process repeat what one seat alone finds twice, before it is believed
    roll_back: bool = False  # on the signatures of a curve that call for it; they are told in any case
    digest_share: float = 0.004  # of the step time, for digests of the state; 1: one in every step
    recompute_share: float = 0.0  # of the steps, that are computed twice and compared: see ``spot_check``

    def __post_init__(self) -> None:
        """Refuse what is no answer, and no share.

        Raises:
            ValueError: names the field.
        """
        answers = (Action.SKIP, Action.GO_ON, Action.STOP, Action.ROLL_BACK)
        for field in ("non_finite", "outlier"):
            if getattr(self, field) not in answers:
                told = ", ".join(repr(one.value) for one in answers)
                raise ValueError(f"Guard({field}={getattr(self, field)!r}): expected one of {told}")
        if not 0 < self.digest_share <= 1:
            raise ValueError(f"Guard(digest_share={self.digest_share!r}): expected a share above 0 and up to 1")
        if not 0 <= self.recompute_share <= 1:
            raise ValueError(f"Guard(recompute_share={self.recompute_share!r}): expected a share from 0 to 1")


OFF = Guard(level=Level.OFF)


def guard_of(wanted: Guard | str) -> Guard:
    """The guard that is meant: itself, with words turned into members of their enumerations, or one of that level.

    Raises:
        ValueError: there is no such level, or a field holds what it cannot; names it.
    """
    if isinstance(wanted, Guard):
        return msgspec.convert(msgspec.to_builtins(wanted), Guard)
    if wanted not in list(Level):
        raise ValueError(f"guard={wanted!r}: expected one of {', '.join(map(repr, map(str, Level)))}, or a Guard")
    return Guard(level=Level(wanted))


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What all seats remember alike; a newcomer is given it."""

    age: int = 0  # attempts judged so far
    norms: tuple[float, ...] = ()  # the largest of each step that was applied
    batches: tuple[int, ...] = ()  # digests of what each seat trained on in the last of them
    data_repeats: bool = False  # a replay found the same batches twice once more: it is meant
    digest_at: int = 0  # age at which the state is digested next
    replicated: bool | None = None  # whether the state is equal on all seats; None: not yet known
    held_step: int = -1
    rounds: tuple[tuple[Evidence, ...], ...] = ()  # attempts at the held step so far, evidence by seat
    skipped: tuple[int, ...] = ()  # steps, newest last
    spot: spot_check.Spot = spot_check.Spot()


class Next(StrEnum):
    """What every seat does now."""

    APPLY = "apply"
    REPLAY = "replay"
    SKIP = "skip"
    AWAIT = "await the supervisor"


class Cause(StrEnum):
    """What the supervisor is to act upon."""

    NOTHING = ""
    REPLAY = "replay"  # the seats were convicted by a replay; without seats: one of them errs, nobody knows which
    OUTVOTED = "outvoted"  # the state of the seats is not that of the majority
    SPLIT = "split"  # state differs, and there is no majority
    NUMERICS = "numerics"  # the mathematics or the data


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from an attempt."""

    next: Next
    findings: tuple[Finding, ...] = ()
    judgement: Judgement | None = None  # of a replay
    cause: Cause = Cause.NOTHING
    seats: tuple[int, ...] = ()  # to be replaced
    stop: bool = False  # the run cannot go on by itself
    roll_back: bool = False
    reason: str = ""


def rule(memory: Memory, step: int, evidence: tuple[Evidence, ...], guard: Guard) -> tuple[Memory, Ruling]:
    """Judge an attempt at ``step``, evidence by seat."""
    memory = replace(memory, age=memory.age + 1)
    memory, distrust = _compare_state(memory, evidence)
    if distrust is not None:
        return memory, distrust
    checked: Judgement | None = None
    if spot_check.round_of(memory.spot, step, guard.recompute_share) is not None or _are_swapped(evidence):
        memory, ruling = _spot_check(memory, step, evidence)
        if ruling.next is not Next.APPLY or ruling.seats:
            return memory, ruling
        checked = ruling.judgement
    found = _found(memory, evidence)
    rounds = memory.rounds if memory.held_step == step else ()
    if not rounds:
        if not found:
            told = "" if checked is None else checked.reason
            return _applied(memory, evidence), Ruling(next=Next.APPLY, judgement=checked, reason=told)
        reason = "; ".join(one.detail for one in found)
        held = replace(memory, held_step=step, rounds=(evidence,))
        return held, Ruling(next=Next.REPLAY, findings=found, reason=reason)
    before = _found(memory, rounds[-1])
    judged = judge(rounds[-1], evidence, _seats(before), _seats(found))
    return _after_replay(replace(memory, rounds=(*rounds, evidence)), found or before, judged, guard)


def _are_swapped(evidence: Sequence[Evidence]) -> bool:
    """Whether a seat computed another one's part: such an attempt is never applied, whatever else is known of it."""
    return any(one.part >= 0 for one in evidence)


def _spot_check(memory: Memory, step: int, evidence: tuple[Evidence, ...]) -> tuple[Memory, Ruling]:
    """Take a round of a spot check. To apply it means that the check is over: whatever else there is may be asked."""
    if memory.spot.way is spot_check.Way.OFF:  # a newcomer does not know that yet
        return memory, Ruling(next=Next.REPLAY)
    spot, seen = spot_check.look(memory.spot, step, evidence)
    memory = replace(memory, spot=spot)
    odd = () if _are_swapped(evidence) else _found(memory, evidence)
    found: tuple[Finding, ...] = ()
    if seen.detail:
        found = (Finding(signature=Signature.SPOT_CHECK, seats=(), detail=seen.detail), *odd)
    if seen.again:
        return memory, Ruling(next=Next.REPLAY, findings=found, reason=seen.detail)
    judged = seen.judgement
    if judged is None:
        return memory, Ruling(next=Next.APPLY)
    ruling = Ruling(next=Next.APPLY, findings=found, judgement=judged, reason=judged.reason)
    if seen.split:  # nothing wrong was applied: the members try again, and then new processes do
        return memory, replace(ruling, next=Next.AWAIT, cause=Cause.REPLAY)
    if judged.verdict is Verdict.UNREPEATABLE or len(evidence) == 1:
        return memory, ruling
    ruling = replace(ruling, cause=Cause.REPLAY, seats=judged.seats)
    if judged.verdict is Verdict.TRANSIENT and not odd:
        return _applied(memory, evidence), ruling
    return memory, replace(ruling, next=Next.AWAIT)


def _found(memory: Memory, evidence: Sequence[Evidence]) -> tuple[Finding, ...]:
    data = () if memory.data_repeats else data_findings(evidence, memory.batches)
    return (*findings(evidence, memory.norms), *data)


def _seats(found: Sequence[Finding]) -> frozenset[int]:
    return frozenset(seat for one in found for seat in one.seats)


def _applied(memory: Memory, evidence: Sequence[Evidence]) -> Memory:
    norms, batches = remember(memory.norms, largest_norm(evidence)), tuple(one.batch for one in evidence)
    return replace(memory, norms=norms, batches=batches, held_step=-1, rounds=())


def _compare_state(memory: Memory, evidence: Sequence[Evidence]) -> tuple[Memory, Ruling | None]:
    if not all(one.state for one in evidence):
        return memory, None
    counted = vote({seat: one.state for seat, one in enumerate(evidence)})
    if memory.replicated is None:
        # Nothing has been trained yet: what differs now is meant to, such as optimizer state that is spread out.
        return replace(memory, replicated=not counted.outvoted), None
    if not memory.replicated or not counted.outvoted:
        return memory, None
    if counted.settled:
        told = f"state of seats {list(counted.outvoted)} is not that of the {len(counted.majority)} others"
        return memory, Ruling(next=Next.AWAIT, cause=Cause.OUTVOTED, seats=counted.outvoted, reason=told)
    return memory, Ruling(next=Next.AWAIT, cause=Cause.SPLIT, reason="state differs by seat, and there is no majority")


def _after_replay(memory: Memory, found: tuple[Finding, ...], judged: Judgement, guard: Guard) -> tuple[Memory, Ruling]:
    newest = memory.rounds[-1]
    odd = bool(_found(memory, newest))
    if judged.verdict in (Verdict.TRANSIENT, Verdict.PERSISTENT, Verdict.UNREPEATABLE) and not odd:
        # After a persistent fault that another process does not show, the seat has been replaced already.
        seats = judged.seats if judged.verdict is Verdict.TRANSIENT and len(newest) > 1 else ()
        cause = Cause.REPLAY if seats else Cause.NOTHING
        ruling = Ruling(next=Next.APPLY, findings=found, judgement=judged, cause=cause, seats=seats)
        return _applied(memory, newest), replace(ruling, reason=judged.reason)
    if len(memory.rounds) < _ROUNDS_MAX:
        convicted = judged.seats if judged.verdict is Verdict.PERSISTENT else _to_ask_elsewhere(found, judged, guard)
        if convicted and len(newest) > 1:
            ruling = Ruling(next=Next.AWAIT, findings=found, judgement=judged, cause=Cause.REPLAY, seats=convicted)
            return memory, replace(ruling, reason=judged.reason)
    return _respond(memory, found, judged, guard)


def _to_ask_elsewhere(found: Sequence[Finding], judged: Judgement, guard: Guard) -> tuple[int, ...]:
    """Seats whose process alone finds something odd each time: another one has to say whether it is the device."""
    seats = tuple(sorted(_seats(found)))
    alone = guard.elsewhere and judged.verdict is Verdict.REPEATED
    return seats if alone and all(one.seats for one in found) else ()


_WORSE = (Action.GO_ON, Action.SKIP, Action.REBUILD, Action.ROLL_BACK, Action.STOP)


def _respond(memory: Memory, found: tuple[Finding, ...], judged: Judgement, guard: Guard) -> tuple[Memory, Ruling]:
    """The same again, and no device is to blame."""
    if any(one.signature is Signature.SAME_DATA for one in found):
        memory = replace(memory, data_repeats=True)
    answers = {
        Signature.NON_FINITE: guard.non_finite,
        Signature.OUTLIER: guard.outlier,
        Signature.MISMATCH: RESPONSES[Signature.MISMATCH].then,
        Signature.SAME_DATA: RESPONSES[Signature.SAME_DATA].then,
    }
    action = max((answers[one.signature] for one in found), key=_WORSE.index)
    told = "; ".join(one.detail for one in found)
    ruling = Ruling(next=Next.AWAIT, findings=found, judgement=judged, cause=Cause.NUMERICS)
    ruling = replace(ruling, reason=f"{judged.reason}: {told}")
    if action is Action.GO_ON:
        return _applied(memory, memory.rounds[-1]), replace(ruling, next=Next.APPLY, cause=Cause.NOTHING)
    if action is Action.SKIP:
        step = memory.held_step
        lately = tuple(one for one in memory.skipped if one > step - _SKIPS_WITHIN)
        if len(lately) < guard.skips_max:
            memory = replace(memory, skipped=(*lately, step), held_step=-1, rounds=())
            return memory, replace(ruling, next=Next.SKIP, cause=Cause.NOTHING)
        told = f"steps {[*lately, step]} had to be skipped, {guard.skips_max} in {_SKIPS_WITHIN} steps are allowed"
        return memory, replace(ruling, stop=True, reason=f"{told}: {ruling.reason}")
    return memory, replace(ruling, stop=action is Action.STOP, roll_back=action is Action.ROLL_BACK)
