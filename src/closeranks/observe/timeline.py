"""The seats and spares of a run over time: segments of one category each, for drawing."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from closeranks.events import Category
from closeranks.observe.history import History, Span, Stay
from closeranks.observe.stalls import given_up_spans, is_lost, stalled_spans


class Segment(NamedTuple):
    """A stretch of one place."""

    span: Span
    category: Category
    process: str  # "" where the seat is empty
    node: str = ""  # of the process, in a job on several nodes


class Lane(NamedTuple):
    """One place and its segments, in order and without overlap."""

    name: str
    segments: tuple[Segment, ...]


def lanes(history: History) -> tuple[Lane, ...]:
    """One lane per seat, then one per spare that ever was."""
    seats = [Lane(f"seat {seat}", _seat_segments(history, seat)) for seat in range(history.seats)]
    spares = [
        Lane(f"spare p{process.proc}", tuple(_spare_segments(history, process.proc)))
        for process in history.processes.values()
        if process.born_seat is None
    ]
    return (*seats, *spares)


def _spare_segments(history: History, proc: int) -> Iterable[Segment]:
    process = history.processes[proc]
    ends = [s for s in (process.seated_s, process.exited_s) if s is not None]
    end_s = min(ends, default=history.span.end_s)
    ready_s = end_s if process.ready_s is None else min(process.ready_s, end_s)
    for span, category in (
        (Span(process.started_s, ready_s), Category.START_UP),
        (Span(ready_s, end_s), Category.SPARE_IDLE),
    ):
        if span.length_s > 0:
            yield Segment(span, category, f"p{proc}", process.node)


def _seat_segments(history: History, seat: int) -> tuple[Segment, ...]:
    found: list[Segment] = []
    at_s, before = history.span.begin_s, Category.START_UP
    for stay in history.stays[seat]:
        gap = Category.START_UP if stay.number == 0 else Category.STALLED
        found.append(Segment(Span(at_s, stay.span.begin_s), gap, ""))
        found += stay_segments(history, stay)
        at_s = stay.span.end_s
        lost = is_lost(history, stay) or given_up_spans(history, seat, Span(at_s, history.span.end_s))
        before = Category.STALLED if lost else Category.SHUT_DOWN
    found.append(Segment(Span(at_s, history.span.end_s), before, ""))
    return tuple(segment for segment in found if segment.span.length_s > 0)


def stay_segments(history: History, stay: Stay) -> list[Segment]:
    """What the records alone tell about a stay, from its begin to its end."""
    layers = [(stay.span, _unworked(history, stay))]
    mine = [(span.cut(stay.span), category) for span, category in history.work_near(stay.span)]
    mine = [(span, category) for span, category in mine if span.length_s > 0]
    if mine:
        rest = Span(mine[-1][0].end_s, stay.span.end_s)
        layers += [*mine, (rest, _after_work(history, stay))]
    layers += [(span, Category.STALLED) for span in stalled_spans(history, stay)]
    return [Segment(span, category, stay.process.name, stay.process.node) for span, category in _flat(layers)]


def _unworked(history: History, stay: Stay) -> Category:
    if not history.library:
        return Category.UNKNOWN
    return Category.STALLED if stay.number > 0 else Category.START_UP


def _after_work(history: History, stay: Stay) -> Category:
    if is_lost(history, stay):
        return Category.STALLED
    return Category.UNKNOWN if stay.process.exit is None else Category.SHUT_DOWN


def _flat(layers: list[tuple[Span, Category]]) -> list[tuple[Span, Category]]:
    """What is seen from above when later layers cover earlier ones."""
    edges = sorted({edge for span, _ in layers for edge in span})
    waiting = sorted(range(len(layers)), key=lambda number: -layers[number][0].begin_s)
    begun: list[int] = []  # a heap of numbers, negative: the top one first
    seen: list[tuple[Span, Category]] = []
    for begin_s, end_s in itertools.pairwise(edges):
        while waiting and layers[waiting[-1]][0].begin_s <= begin_s:
            heapq.heappush(begun, -waiting.pop())
        while begun and layers[-begun[0]][0].end_s < end_s:
            heapq.heappop(begun)
        if not begun:
            continue
        top = layers[-begun[0]][1]
        if seen and seen[-1][1] is top and seen[-1][0].end_s == begin_s:
            seen[-1] = (Span(seen[-1][0].begin_s, end_s), top)
        else:
            seen.append((Span(begin_s, end_s), top))
    return seen
