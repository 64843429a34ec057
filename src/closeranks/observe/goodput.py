"""Where every process-second of a run went.

The ledger covers *places*: each seat from the first record of the run to the last, and each spare from its start
until it was seated. A second of a place has exactly one category. What processes count themselves (``Account``) is
the main source; what they cannot count - gaps between two processes, the attempt that died with one - comes from the
records about them. The sum over the categories is checked against the clock, place by place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from closeranks.events import Category, Record
from closeranks.observe.history import History, Process, Span, Stay, history_of
from closeranks.observe.stalls import (
    SEEN_WITHIN_S,
    UNATTRIBUTED,
    common_s,
    given_up_spans,
    is_lost,
    lost_span,
    split_by_phase,
    split_gap,
    stalled_spans,
    survived_spans,
    union,
)
from closeranks.observe.timeline import stay_segments

GOODPUT_DEFINITION: Final = (
    "Goodput: seconds in useful steps over all seconds of all seats and spares, start-up and shut-down included."
)
DURABLE_DEFINITION: Final = (
    "Durable goodput: like goodput, but only steps that outlive the run count: those that a committed checkpoint "
    "holds. Without a store, all do once the run has completed, and none before."
)
ETTR_DEFINITION: Final = (
    "ETTR (effective training time ratio): time that the seats spent in useful steps over the wall time of the run, "
    "averaged over the seats; spares are left out."
)

_RELATIVE_TOLERANCE = 1e-6
_CLOCK_TOLERANCE_S = 5e-3  # records are written a little after what they tell
_WORKING = (Category.UNKNOWN, Category.USEFUL, Category.REPEATED)

Seconds = dict[Category, float]
K = TypeVar("K", bound=str)


class LedgerError(Exception):
    """A process accounts for more time than it lived: the journal contradicts itself."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A seat, or a spare before it was seated, and where its seconds went."""

    name: str  # "seat 3" or "spare p7"
    wall_s: float
    seconds: Seconds
    stalled: dict[str, float]  # the stalled seconds by part of a recovery, see stalls.STALL_PARTS
    nodes: tuple[str, ...] = ()  # on which its processes were, in order; empty in a run on one node


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All places of a run. Ratios are None where the script shows neither steps nor what it does."""

    wall_s: float
    place_s: float  # wall time of all places together
    ended: bool
    places: tuple[Place, ...]
    seconds: Seconds
    stalled: dict[str, float]
    goodput: float | None
    durable_goodput: float | None
    ettr: float | None


def ledger_of(records: Sequence[Record]) -> Ledger:
    """The ledger of a run, of one that still goes on (up to its last record), or of one that was killed.

    Raises:
        EmptyJournalError: there are no records.
        LedgerError: the seconds of a place do not add up to its wall time.
    """
    return ledger(history_of(records))


def ledger(history: History) -> Ledger:
    """Like ``ledger_of``, for records that are sorted already."""
    seats = [_seat_place(history, seat) for seat in range(history.seats)]
    spares = [_spare_place(history, p) for p in history.processes.values() if p.born_seat is None]
    places = (*seats, *spares)
    for place in places:
        _check(place)
    seconds = _sum([place.seconds for place in places])
    place_s = sum(place.wall_s for place in places)
    useful_s = seconds.get(Category.USEFUL, 0.0)
    measured = place_s > 0 and history.library
    goodput = useful_s / place_s if measured else None
    return Ledger(
        wall_s=history.span.length_s,
        place_s=place_s,
        ended=history.ended is not None,
        places=places,
        seconds=seconds,
        stalled=_sum([place.stalled for place in places]),
        goodput=goodput,
        durable_goodput=None if goodput is None else goodput * _durable_share(history),
        ettr=_ettr(seats) if measured else None,
    )


def _durable_share(history: History) -> float:
    """The part of the useful seconds that outlives the run."""
    if history.durable_step is None:
        return float(history.ended is not None and history.ended.outcome == "completed")
    useful = [(step.step, step.closed_mono_s - step.began_mono_s) for step in history.steps if not step.repeated]
    all_s = sum(length_s for _, length_s in useful)
    kept_s = sum(length_s for step, length_s in useful if step <= history.durable_step)
    return kept_s / all_s if all_s > 0 else 0.0


def _ettr(seats: list[Place]) -> float | None:
    wall_s = sum(place.wall_s for place in seats)
    useful_s = sum(place.seconds.get(Category.USEFUL, 0.0) for place in seats)
    return useful_s / wall_s if wall_s > 0 else None


def _check(place: Place) -> None:
    total_s = sum(place.seconds.values())
    if abs(total_s - place.wall_s) > _tolerance_s(place.wall_s) or min(place.seconds.values(), default=0.0) < 0:
        raise LedgerError(f"{place.name}: categories add up to {total_s:.6f} s, its wall time is {place.wall_s:.6f} s")


def _tolerance_s(wall_s: float) -> float:
    return _RELATIVE_TOLERANCE * wall_s + _CLOCK_TOLERANCE_S


# --- spares -----------------------------------------------------------------------------------------------------


def _spare_place(history: History, process: Process) -> Place:
    span = _spare_span(history, process)
    ready_s = span.end_s if process.ready_s is None else min(max(process.ready_s, span.begin_s), span.end_s)
    seconds = {Category.START_UP: ready_s - span.begin_s, Category.SPARE_IDLE: span.end_s - ready_s}
    return Place(
        name=f"spare p{process.proc}",
        wall_s=span.length_s,
        seconds=_positive(seconds),
        stalled={},
        nodes=(process.node,) if process.node else (),
    )


def _spare_span(history: History, process: Process) -> Span:
    ends = [s for s in (process.seated_s, process.exited_s) if s is not None]
    return Span(process.started_s, max(process.started_s, min(ends, default=history.span.end_s)))


# --- seats ------------------------------------------------------------------------------------------------------


def _seat_place(history: History, seat: int) -> Place:
    parts: list[Seconds] = []
    stalls: list[dict[str, float]] = []
    at_s = history.span.begin_s
    before: Stay | None = None
    for stay in history.stays[seat]:
        parts.append(_gap_seconds(history, before, Span(at_s, stay.span.begin_s), followed=True))
        stalls.append(_gap_stalls(history, before, Span(at_s, stay.span.begin_s), parts[-1]))
        parts.append(_stay_seconds(history, stay))
        stalls.append(_stay_stalls(history, stay, parts[-1]))
        at_s, before = stay.span.end_s, stay
    rest = Span(at_s, history.span.end_s)
    parts.append(_gap_seconds(history, before, rest, followed=False))
    stalls.append(_gap_stalls(history, before, rest, parts[-1]))
    nodes = (node for node, _ in itertools.groupby(stay.process.node for stay in history.stays[seat]) if node)
    return Place(
        name=f"seat {seat}",
        wall_s=history.span.length_s,
        seconds=_sum(parts),
        stalled=_sum(stalls),
        nodes=tuple(nodes),
    )


def _gap_seconds(history: History, before: Stay | None, gap: Span, *, followed: bool) -> Seconds:
    """Nobody sits in the seat: not yet, between two processes, or no more."""
    if before is None:
        return _positive({Category.START_UP: gap.length_s})
    going_on = history.ended is None and is_lost(history, before)
    if followed or going_on:
        return _positive({Category.STALLED: gap.length_s})
    stalled_s = sum(span.length_s for span in _stalled_at_the_end(history, before, gap))
    return _positive({Category.STALLED: stalled_s, Category.SHUT_DOWN: gap.length_s - stalled_s})


def _stalled_at_the_end(history: History, before: Stay, gap: Span) -> list[Span]:
    given_up = given_up_spans(history, before.process.seat or 0, gap)
    if not given_up and not is_lost(history, before):
        return []
    spans = [Span(span.begin_s - SEEN_WITHIN_S, span.end_s) for span in history.incident_spans.values()]
    return union([*(span.cut(gap) for span in spans), *given_up])


def _gap_stalls(history: History, before: Stay | None, gap: Span, seconds: Seconds) -> dict[str, float]:
    stalled_s = seconds.get(Category.STALLED, 0.0)
    if before is None or stalled_s <= 0:
        return {}
    span = Span(gap.begin_s, gap.begin_s + stalled_s)
    return split_gap(history, before.process.seat or 0, span)


def _stay_seconds(history: History, stay: Stay) -> Seconds:
    if stay.process.account is None:
        return _told_by_records(history, stay)
    seconds = _counted_in_seat(history, stay)
    _move(seconds, _WORKING, Category.STALLED, _lost_s(history, stay, seconds))
    repeated_s = _repeated_s(history, stay) - seconds.get(Category.REPEATED, 0.0)
    _move(seconds, (Category.USEFUL,), Category.REPEATED, repeated_s)
    if stay.number > 0:
        _move(seconds, (Category.START_UP, Category.SPARE_IDLE), Category.STALLED, stay.span.length_s)
    if stay.process.exit is not None and not is_lost(history, stay) and history.library:
        _move(seconds, (Category.UNKNOWN,), Category.SHUT_DOWN, stay.span.length_s)
    return _positive(seconds)


def _told_by_records(history: History, stay: Stay) -> Seconds:
    """For a process that never gave an account: one of a script without the library, or one that was not asked yet."""
    seconds: Seconds = {}
    for segment in stay_segments(history, stay):
        _add(seconds, segment.category, segment.span.length_s)
    return seconds


def _counted_in_seat(history: History, stay: Stay) -> Seconds:
    """The account of the process, extended to both ends of its life and cut to its time in the seat."""
    process, account = stay.process, stay.process.account
    if account is None:
        raise LedgerError(f"process {process.proc} has no account")
    seconds = {category: float(counted_s) for category, counted_s in account.seconds.items()}
    died_s = history.span.end_s if process.exited_s is None else process.exited_s
    head_s = account.at_mono_s - process.started_s - sum(seconds.values())
    _add(seconds, Category.START_UP, max(0.0, head_s))  # before its first look at the clock
    _add(seconds, Category.UNKNOWN, max(0.0, died_s - account.at_mono_s))  # after its last one
    outside_s = sum(seconds.values()) - stay.span.length_s
    if process.born_seat is None:
        taken_s = min(outside_s, _spare_span(history, process).length_s)
        outside_s -= _take(seconds, (Category.SPARE_IDLE, Category.START_UP, Category.STALLED), taken_s)
    # A page is read a moment after its process died, and a successor may sit in the seat before that.
    if outside_s > max(died_s, account.at_mono_s) - stay.span.end_s + _tolerance_s(stay.span.length_s):
        raise LedgerError(
            f"process {process.proc} accounts for {outside_s:.6f} s more than the {stay.span.length_s:.6f} s "
            f"that it sat in seat {process.seat}"
        )
    # What is outside lies at its end. One that was lost may have stalled there already, before it was ended.
    outside_s -= _take(seconds, (Category.UNKNOWN,), outside_s)
    if is_lost(history, stay):
        told_s = sum(span.length_s for span in survived_spans(history, stay))
        open_s = max(0.0, seconds.get(Category.STALLED, 0.0) - told_s)
        outside_s -= _take(seconds, (Category.STALLED,), min(outside_s, open_s))
    _take(seconds, (*_WORKING, *Category), outside_s)
    return seconds


def _lost_s(history: History, stay: Stay, seconds: Seconds) -> float:
    """Seconds that the process counted as work, but lost: its last attempt, less what it knew to be stalled.

    A stall that it survived is told by the records; one that it died in is only in its account.
    """
    lost, told = lost_span(history, stay), survived_spans(history, stay)
    told_s = sum(span.length_s for span in told)
    known_s = seconds.get(Category.STALLED, 0.0)
    if stay.number > 0:
        known_s += seconds.get(Category.START_UP, 0.0) + seconds.get(Category.SPARE_IDLE, 0.0)
    # A stall that it survived since its last closed step is no part of the attempt: it counted that itself.
    # Nor is the pause for a snapshot of that step.
    attempt_s = lost.length_s - common_s([lost], told) - common_s([lost], history.pauses_near(lost))
    return attempt_s - max(0.0, known_s - told_s)


def _repeated_s(history: History, stay: Stay) -> float:
    """Seconds of work that was made again; a stretch of it goes on over pauses, and stalls that its group survived."""
    near = history.work_near(stay.span)
    spans = [span.cut(stay.span) for span, category in near if category is Category.REPEATED]
    if not spans:
        return 0.0
    other_s = common_s(spans, stalled_spans(history, stay)) + common_s(spans, history.pauses_near(stay.span))
    return sum(span.length_s for span in spans) - other_s


def _stay_stalls(history: History, stay: Stay, seconds: Seconds) -> dict[str, float]:
    """The account says how long it was stalled, the records say in which phase."""
    stalled_s = seconds.get(Category.STALLED, 0.0)
    spans = stalled_spans(history, stay)
    spans = union([*spans, _unended_stall(stay, spans, stalled_s)])
    parts = split_by_phase(spans, history)
    told_s = sum(parts.values())
    if told_s > stalled_s:
        return {part: part_s * stalled_s / told_s for part, part_s in parts.items() if stalled_s > 0}
    if stalled_s - told_s > _tolerance_s(stalled_s):
        parts[UNATTRIBUTED] = parts.get(UNATTRIBUTED, 0.0) + stalled_s - told_s
    return parts


def _unended_stall(stay: Stay, told: Sequence[Span], stalled_s: float) -> Span:
    """The last stall of a process that ended in it: only a process that goes on tells since when it was stalled."""
    end_s = stay.span.end_s
    untold_s = stalled_s - sum(span.length_s for span in told)
    if untold_s <= _tolerance_s(stalled_s):
        return Span(end_s, end_s)
    return Span(max(end_s - untold_s, told[-1].end_s if told else stay.span.begin_s), end_s)


# --- arithmetic -------------------------------------------------------------------------------------------------


def _add(seconds: Seconds, category: Category, more_s: float) -> None:
    seconds[category] = seconds.get(category, 0.0) + more_s


def _take(seconds: Seconds, order: Sequence[Category], wanted_s: float) -> float:
    """Take up to ``wanted_s`` from the categories, in that order; what was taken."""
    taken_s = 0.0
    for category in order:
        part_s = min(seconds.get(category, 0.0), wanted_s - taken_s)
        if part_s > 0:
            seconds[category] -= part_s
            taken_s += part_s
    return taken_s


def _move(seconds: Seconds, order: Sequence[Category], to: Category, wanted_s: float) -> None:
    _add(seconds, to, _take(seconds, order, wanted_s))


def _positive(seconds: Seconds) -> Seconds:
    return {category: part_s for category, part_s in seconds.items() if part_s > 0}


def _sum(parts: Iterable[Mapping[K, float]]) -> dict[K, float]:
    total: dict[K, float] = {}
    for part in parts:
        for key, seconds in part.items():
            total[key] = total.get(key, 0.0) + seconds
    return total
