"""Spot checks: some steps are computed twice before they are applied, each seat's part by another seat as well. Pure.

A *part* is what one seat contributes to a step: the gradients of its batch under its random numbers. In a checked step
the first round is shifted: each seat computes the part of the next one, and nothing is applied. The second round is
the ordinary one. Where all parts come out alike, it is applied. Where one does not, a third round is shifted further,
so that a third seat is asked, and a fourth is the ordinary one again. What two different seats found of a part is true
as long as at most one seat errs: of three seats that were asked, two do not. That holds however the third one errs,
and also when it errs in some rounds only, as a bit that is stuck does where the right value has it anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from closeranks.detect.corruption import Evidence, Judgement, Verdict

_WORD: Final = 2**64
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
_SHIFTS: Final = (1, 0, 2, 0)  # by round: whose part a seat computes, counted from itself
_TWO: Final = 2  # so many witnesses, and so few seats that a third one cannot be asked

Value = tuple[bool, int, int]


class Way(StrEnum):
    """How the parts of a checked step are computed again."""

    UNTRIED = "untried"  # by other seats, and that has not come out alike yet
    SWAPPED = "swapped"  # by other seats, and that has come out alike before
    OWN = "own"  # by the same seat
    OFF = "off"  # not at all: the step cannot be repeated


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """What all seats remember alike of their checks."""

    way: Way = Way.UNTRIED
    tried: tuple[int, ...] = ()  # seats that got another process before anything had ever come out alike
    step: int = -1  # that was checked last
    rounds: tuple[tuple[Evidence, ...], ...] = ()  # of it so far, evidence by seat
    settled: bool = False  # nothing more is asked about it


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What a round says."""

    again: bool = False  # another round is needed
    judgement: Judgement | None = None  # None: it is not known yet, or everything came out alike
    split: bool = False  # one of several seats errs each time, and nobody can say which
    detail: str = ""  # what came out differently


def due(step: int, share: float) -> bool:
    """Whether the step is checked; so are a share of all steps, evenly spread, and in no period that a fault may have.

    Source: Knuth, The Art of Computer Programming 3, 6.4: multiples of the golden ratio divide a circle evenly.
    """
    return step * _GOLDEN % _WORD < share * _WORD


def round_of(spot: Spot, step: int, share: float) -> int | None:
    """Which round of a check the next attempt at the step is; None: it is none."""
    if spot.way is Way.OFF or not due(step, share):
        return None
    if spot.step != step:
        return 0
    return None if spot.settled else len(spot.rounds)


def part_of(number: int, seat: int, seats: int) -> int:
    """Whose part the seat computes in this round, where parts can be computed by other seats."""
    shift = _SHIFTS[number]
    return (seat + (min(shift, 1) if seats == _TWO else shift)) % seats


def begun(spot: Spot) -> Spot:
    """A new term begins: a check that was under way begins anew, since a newcomer has no part in it."""
    return replace(spot, step=-1, rounds=(), settled=False)


def look(spot: Spot, step: int, evidence: tuple[Evidence, ...]) -> tuple[Spot, Look]:
    """Take a round of the check of ``step``."""
    if spot.step != step:
        spot = replace(spot, step=step, rounds=(), settled=False)
    if spot.way is Way.UNTRIED and not spot.rounds and _all_own(evidence):
        spot = replace(spot, way=Way.OWN)
    spot = replace(spot, rounds=(*spot.rounds, evidence))
    if len(spot.rounds) == 1:
        return spot, Look(again=True)
    spot, found = _compare(spot)
    if found.again:
        return spot, found
    return replace(spot, rounds=(), settled=True), found


def _all_own(evidence: Sequence[Evidence]) -> bool:
    return all(one.part < 0 for one in evidence)


class _Computed(NamedTuple):
    """What a seat found of a part in a round."""

    number: int
    seat: int
    part: int
    value: Value


def _compare(spot: Spot) -> tuple[Spot, Look]:
    seats, last = len(spot.rounds[0]), len(spot.rounds) - 1
    table = _table(spot.rounds)
    by_seat = spot.way is not Way.OWN and not all(map(_all_own, spot.rounds))
    true, than = _true(table, by_seat=by_seat), "than two seats did" if by_seat else "than the other times"
    wrong = [one for one in table if one.part in true and one.value != true[one.part]]
    erred = tuple(sorted({one.seat for one in wrong}))
    known = len(true) == seats
    blamed = bool(erred) and (2 * len(erred) <= seats or seats == 1)
    if known and _all_own(spot.rounds[-1]) and not any(one.number == last for one in wrong):
        if not erred:
            return replace(spot, way=Way.OWN if spot.way is Way.OWN else Way.SWAPPED), Look()
        if blamed:
            return spot, _convicted(table, erred, Verdict.TRANSIENT, f"{than}, and what is found now is in order")
        return _unrepeatable(spot, table, erred)
    often = any(len({one.number for one in wrong if one.seat == seat}) > 1 for seat in erred)
    if known and blamed and (often or last == len(_SHIFTS) - 1):
        return _persistent(spot, table, erred, f"{than}, in {len({one.number for one in wrong})} of {last + 1} rounds")
    if last < len(_SHIFTS) - 1:
        return spot, Look(again=True, detail=_differences(table))
    return _undecided(spot, table)


def _table(rounds: Sequence[Sequence[Evidence]]) -> list[_Computed]:
    return [
        _Computed(number, seat, seat if one.part < 0 else one.part, (one.finite, one.fingerprint, one.batch))
        for number, evidence in enumerate(rounds)
        for seat, one in enumerate(evidence)
    ]


def _true(table: Sequence[_Computed], *, by_seat: bool) -> dict[int, Value]:
    """By part what two witnesses found: two seats, or one seat in two rounds. Parts with two such values lack."""
    witnesses: dict[int, dict[Value, set[int]]] = {}
    for one in table:
        witnesses.setdefault(one.part, {}).setdefault(one.value, set()).add(one.seat if by_seat else one.number)
    agreed = {
        part: [value for value, seen_by in found.items() if len(seen_by) >= _TWO] for part, found in witnesses.items()
    }
    return {part: values[0] for part, values in agreed.items() if len(values) == 1}


def _undecided(spot: Spot, table: Sequence[_Computed]) -> tuple[Spot, Look]:
    """All rounds are made, and what is true is not known of every part, or too many seats err."""
    fickle = tuple(sorted(_fickle(table)))
    if fickle and 2 * len(fickle) <= len(spot.rounds[0]):
        return _persistent(spot, table, fickle, "each time")
    if not fickle and spot.way is Way.SWAPPED:
        told = "each seat repeats what it computed, and they differ: one errs each time, and it is not known which"
        return spot, replace(_nobody(table, told), split=True)
    if not fickle:
        told = "each seat repeats what it computed, and no two agree, from the first check on: it depends on the seat"
        return replace(spot, way=Way.OWN), _nobody(table, told)
    return _unrepeatable(spot, table, fickle)


def _unrepeatable(spot: Spot, table: Sequence[_Computed], differ: tuple[int, ...]) -> tuple[Spot, Look]:
    told = f"{len(differ)} of {len(spot.rounds[0])} seats differ: the step is not repeatable"
    return replace(spot, way=Way.OFF), _nobody(table, told)


def _fickle(table: Sequence[_Computed]) -> set[int]:
    """Seats that found two things of one part."""
    first: dict[tuple[int, int], Value] = {}
    return {one.seat for one in table if first.setdefault((one.seat, one.part), one.value) != one.value}


def _persistent(spot: Spot, table: Sequence[_Computed], seats: tuple[int, ...], how: str) -> tuple[Spot, Look]:
    if spot.way is Way.UNTRIED:
        # What differs from the first check on may be the code, which asks for the rank, or another kind of device. Once
        # another process there says the same, it is not the process.
        if set(seats) & set(spot.tried):
            told = (
                f"seats {list(seats)} find something else than others from the first check on, another process too: "
                "a device that errs, a device of another kind, or code that asks for the rank"
            )
            return replace(spot, way=Way.OWN), _nobody(table, told)
        spot = replace(spot, tried=tuple(sorted({*spot.tried, *seats})))
    return spot, _convicted(table, seats, Verdict.PERSISTENT, how)


def _convicted(table: Sequence[_Computed], seats: tuple[int, ...], verdict: Verdict, how: str) -> Look:
    told = f"spot check: seats {list(seats)} computed something else {how}"
    return Look(judgement=Judgement(verdict=verdict, seats=seats, reason=told), detail=_differences(table))


def _nobody(table: Sequence[_Computed], told: str) -> Look:
    judgement = Judgement(verdict=Verdict.UNREPEATABLE, seats=(), reason=f"spot check: {told}")
    return Look(judgement=judgement, detail=_differences(table))


def _differences(table: Sequence[_Computed]) -> str:
    """``spot check: the part of seat 2 came out differently in seats [1, 2]``; empty where nothing did."""
    found: dict[int, set[Value]] = {}
    for one in table:
        found.setdefault(one.part, set()).add(one.value)
    told = []
    for part in sorted(part for part, values in found.items() if len(values) > 1):
        asked = sorted({one.seat for one in table if one.part == part})
        where = f"in seats {asked}" if len(asked) > 1 else "when it computed it again"
        told.append(f"the part of seat {part} came out differently {where}")
    return f"spot check: {'; '.join(told)}" if told else ""
