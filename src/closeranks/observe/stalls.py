"""When a seat was stalled by a failure, and in which phase of the recovery."""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from closeranks.events import Phase
from closeranks.observe.history import History, PhaseSpan, Span, Stay

LOST_ATTEMPT: Final = "lost attempt"  # the part of the attempt before anybody saw that it was lost
UNATTRIBUTED: Final = "unattributed"  # stalled, but no incident says why
GIVEN_UP: Final = "without the seat"  # the group went on with fewer seats than were asked for
SEEN_WITHIN_S: Final = 0.25  # from the end of a process to the first sign of it, on a busy node
STALL_PARTS: Final = (LOST_ATTEMPT, *(phase.value for phase in Phase), GIVEN_UP, UNATTRIBUTED)


def is_lost(history: History, stay: Stay) -> bool:
    """Whether a failure ended this stay, rather than the end of the run."""
    if stay.process.exit is None and stay.last:
        return False
    if not stay.last:
        return True
    ended = stay.process.exit
    if ended is not None and not ended.asked and ended.code != 0:
        return True
    return any(
        stay.process.seat in history.incident_seats.get(incident, ()) and span.begin_s <= stay.span.end_s <= span.end_s
        for incident, span in history.incident_spans.items()
    )


def lost_span(history: History, stay: Stay) -> Span:
    """The attempt that was lost with the process of this stay: from the last step closed in it to its end.

    Empty when the stay was not lost, or when its last attempt still counted.
    """
    end_s = stay.span.end_s
    if not is_lost(history, stay):
        return Span(end_s, end_s)
    steps = history.steps
    after = bisect.bisect_right(steps, end_s, key=lambda step: step.closed_mono_s)
    if after < len(steps) and steps[after].began_mono_s < end_s:
        return Span(end_s, end_s)  # the process had closed this step; its peers closed it later
    last_closed_s = steps[after - 1].closed_mono_s if after else stay.span.begin_s
    return Span(max(stay.span.begin_s, last_closed_s), end_s)


def lost_attempts(history: History) -> list[Span]:
    """The attempts that failures took, each to the latest time at which the first sign of it may be seen."""
    spans: list[Span] = []
    for stay in itertools.chain.from_iterable(history.stays):
        lost = lost_span(history, stay)
        spans += survived_spans(history, stay)
        if lost.length_s > 0:
            spans.append(lost._replace(end_s=lost.end_s + SEEN_WITHIN_S))
    return spans


def lost_before(history: History) -> dict[int, float]:
    """By incident: seconds from the begin of the oldest attempt that it took to the first sign of it; 0 if none."""
    attempts = collections.deque(sorted(lost_attempts(history)))
    begun: collections.deque[Span] = collections.deque()  # the oldest first
    found: dict[int, float] = {}
    for number, (at_s, _) in sorted(history.incident_spans.items(), key=lambda one: one[1].begin_s):
        while attempts and attempts[0].begin_s < at_s:
            begun.append(attempts.popleft())
        while begun and begun[0].end_s < at_s:
            begun.popleft()
        found[number] = at_s - begun[0].begin_s if begun else 0.0
    return found


def survived_spans(history: History, stay: Stay) -> list[Span]:
    """Disjoint spans of a stay, in order: stalls that its process saw the end of, and the start of a replacement."""
    spans = [Span(stall.since_mono_s, stall.until_mono_s) for stall in stay.process.stalls]
    if stay.number > 0 and history.library:
        spans.append(Span(stay.span.begin_s, _first_attempt_s(history, stay)))
    return union(span.cut(stay.span) for span in spans)


def stalled_spans(history: History, stay: Stay) -> list[Span]:
    """Disjoint spans of a stay, in order, in which its process was stalled."""
    return union([*survived_spans(history, stay), lost_span(history, stay)])


def _first_attempt_s(history: History, stay: Stay) -> float:
    """When the first attempt began that counted: its first step, or the end of the stall that it came into."""
    first = bisect.bisect_left(history.steps, stay.span.begin_s, key=lambda step: step.began_mono_s)
    counted = first < len(history.steps) and history.steps[first].closed_mono_s <= stay.span.end_s
    begun_s = history.steps[first].began_mono_s if counted else stay.span.end_s
    # A stall that began later is one that it met in its work.
    into = (stall.until_mono_s for stall in stay.process.stalls if stall.since_mono_s < begun_s)
    return min(into, default=begun_s)


def given_up_spans(history: History, seat: int, within: Span) -> list[Span]:
    """Disjoint spans, in order, in which the group had fewer seats, and not this one."""
    return union(span.cut(within) for span, seats in history.sizes_near(within) if seats <= seat)


def common_s(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Seconds that two lists of disjoint spans, each in order, have in common."""
    total_s, at, by = 0.0, 0, 0
    while at < len(left) and by < len(right):
        total_s += left[at].cut(right[by]).length_s
        if left[at].end_s < right[by].end_s:
            at += 1
        else:
            by += 1
    return total_s


def split_gap(history: History, seat: int, gap: Span) -> dict[str, float]:
    """Like ``split_by_phase``, for stalled seconds in which nobody sat in the seat."""
    given_up = given_up_spans(history, seat, gap)
    parts = split_by_phase(_rest(gap, given_up), history)
    given_up_s = sum(span.length_s for span in given_up)
    return parts | {GIVEN_UP: given_up_s} if given_up_s > 0 else parts


def union(spans: Iterable[Span]) -> list[Span]:
    """The same seconds in disjoint spans, in order."""
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.length_s > 0):
        if merged and span.begin_s <= merged[-1].end_s:
            merged[-1] = Span(merged[-1].begin_s, max(merged[-1].end_s, span.end_s))
        else:
            merged.append(span)
    return merged


def split_by_phase(spans: Iterable[Span], history: History) -> dict[str, float]:
    """Seconds of the spans by part of a recovery; the values add up to the length of the spans."""
    parts = dict.fromkeys(STALL_PARTS, 0.0)
    for span in spans:
        near = history.phases_near(span)
        covered = union(phase.span.cut(span) for phase in near)
        for phase, seconds in _by_phase(span, near).items():
            parts[phase] += seconds
        for free in _rest(span, covered):
            # Before an incident began, it is the attempt that the incident took.
            lost = history.incident_began(free.begin_s, span.end_s + SEEN_WITHIN_S)
            parts[LOST_ATTEMPT if lost else UNATTRIBUTED] += free.length_s
    return {part: seconds for part, seconds in parts.items() if seconds > 0}


def _by_phase(span: Span, phases: Sequence[PhaseSpan]) -> dict[str, float]:
    """Where phases of two incidents overlap, the earlier one counts: no second is given out twice."""
    given: dict[str, float] = {}
    from_s = span.begin_s
    for phase in phases:
        part = phase.span.cut(Span(from_s, span.end_s))
        if part.length_s > 0:
            given[phase.phase.value] = given.get(phase.phase.value, 0.0) + part.length_s
            from_s = part.end_s
    return given


def _rest(span: Span, covered: list[Span]) -> list[Span]:
    free, from_s = [], span.begin_s
    for part in covered:
        free.append(Span(from_s, part.begin_s))
        from_s = part.end_s
    free.append(Span(from_s, span.end_s))
    return [part for part in free if part.length_s > 0]
