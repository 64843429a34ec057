"""Charts as inline SVG. They share one horizontal axis, so that an incident stands at the same place in all."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

import msgspec

from closeranks.events import Category
from closeranks.observe.history import Span
from closeranks.observe.timeline import Lane, Segment

_WIDTH: Final = 1080
_LEFT: Final = 76
_RIGHT: Final = 12
_LANE: Final = 22
_LETTER: Final = 7
_CHART: Final = 130
_POINTS: Final = 600
_TICKS: Final = 8
_LINES: Final = 4

Points = Sequence[tuple[float, float]]  # (time on the journal's clock, value)


class Mark(NamedTuple):
    """An instant that every chart shows."""

    at_s: float
    title: str
    interrupts: bool = True  # training stood still there


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """Time from left to right."""

    span: Span
    marks: tuple[Mark, ...]

    def x(self, at_s: float) -> float:
        """The place of an instant, in units of the drawing."""
        share = (at_s - self.span.begin_s) / self.span.length_s if self.span.length_s else 0.0
        return _LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - _RIGHT)


def css_class(category: Category) -> str:
    """The style class that colours a category."""
    short = {Category.USEFUL: "useful", Category.REPEATED: "repeated", Category.STALLED: "stalled"}
    return short.get(category, category.value.replace(" ", "-"))


def timeline(axis: Axis, lanes: Sequence[Lane]) -> str:
    """One row per lane, coloured by category; empty without lanes."""
    if not lanes:
        return ""
    bottom = len(lanes) * _LANE
    parts = [*_ticks(axis, bottom)]
    for row, lane in enumerate(lanes):
        top = row * _LANE
        parts.append(f'<text class="lane" x="0" y="{top + 15}">{escape(lane.name)}</text>')
        parts += [_rectangle(axis, segment, top) for segment in lane.segments]
        parts += _nodes(axis, lane.segments, top)
    return _svg(bottom, [*parts, *_marks(axis, bottom)], "category of each seat and spare over time")


def curve(axis: Axis, points: Points, label: str, floor: float | None = None) -> str:
    """A line through the points; the vertical axis begins at ``floor`` if given. Empty without points."""
    points = _thinned([point for point in points if math.isfinite(point[1])])
    if not points:
        return ""
    values = [value for _, value in points]
    margin = (max(values) - min(values)) * 0.06 or abs(values[0]) * 0.1 or 1.0
    low, high = min(values) - margin if floor is None else floor, max(values) + margin

    def y(value: float) -> float:
        return _CHART - (value - low) / (high - low) * _CHART

    parts = [*_ticks(axis, _CHART)]
    for value in round_values(low, high, _LINES):
        at = f"{y(value):.1f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for stretch in _between_marks(points, axis.marks):
        line = " ".join(f"{axis.x(at_s):.1f},{y(value):.1f}" for at_s, value in (*stretch, stretch[-1]))
        parts.append(f'<polyline points="{line}"/>')
    return _svg(_CHART, [*parts, *_marks(axis, _CHART)], f"{label} over time")


def round_values(low: float, high: float, count: int) -> list[float]:
    """About ``count`` values between the two, at steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return []
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power * count >= high - low)
    return [float(f"{number * step:.10g}") for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _rectangle(axis: Axis, segment: Segment, top: float) -> str:
    left = axis.x(segment.span.begin_s)
    width = max(0.6, axis.x(segment.span.end_s) - left)
    where = f" on {segment.node}" if segment.node else ""
    title = f"{segment.process or 'nobody'}{where}: {segment.category.value}, {segment.span.length_s:.3f} s"
    return (
        f'<rect class="{css_class(segment.category)}" x="{left:.2f}" y="{top + 3}" width="{width:.2f}" '
        f'height="{_LANE - 6}"><title>{escape(title)}</title></rect>'
    )


def _nodes(axis: Axis, segments: Iterable[Segment], top: float) -> Iterable[str]:
    """The name of the node where a place moves to it, if there is room."""
    seated = (segment for segment in segments if segment.node)
    for node, group in itertools.groupby(seated, key=lambda segment: segment.node):
        spans = [segment.span for segment in group]
        left = axis.x(spans[0].begin_s)
        if axis.x(spans[-1].end_s) - left >= _LETTER * (len(node) + 1):
            yield f'<text class="node" x="{left + 4:.2f}" y="{top + 15}">{escape(node)}</text>'


def _ticks(axis: Axis, bottom: float) -> Iterable[str]:
    for second in round_values(0.0, axis.span.length_s, _TICKS):
        x = f"{axis.x(axis.span.begin_s + second):.1f}"
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{second:g} s</text>'


def _marks(axis: Axis, bottom: float) -> Iterable[str]:
    for mark in axis.marks:
        x = f"{axis.x(mark.at_s):.1f}"
        style = "mark" if mark.interrupts else "takeover"
        yield f'<line class="{style}" x1="{x}" x2="{x}" y1="0" y2="{bottom}"><title>{escape(mark.title)}</title></line>'


def _svg(bottom: float, parts: Iterable[str], label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {bottom + 20}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _between_marks(points: Points, marks: Iterable[Mark]) -> Iterable[Points]:
    """Stretches of the line: it is not drawn through a time in which nothing was measured."""
    at_s = sorted(mark.at_s for mark in marks if mark.interrupts)
    for _, stretch in itertools.groupby(points, key=lambda point: bisect.bisect(at_s, point[0])):
        yield list(stretch)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about ``_POINTS``: lowest and highest of each stretch, so that no spike gets lost."""
    if len(points) <= _POINTS:
        return points
    size = math.ceil(2 * len(points) / _POINTS)
    stretches = (points[start : start + size] for start in range(0, len(points), size))
    return [
        point
        for stretch in stretches
        for point in sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    ]
