"""The answer as one self-contained HTML page with drawn curves: no script, no network, readable in print."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from closeranks.plan.answer import Answer

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640.0, 300.0, 60.0, 40.0, 16.0, 16.0
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}"
    ".note{color:#666}.warn{color:#a40}h2{margin-top:2rem}"
)


def curve_svg(points: tuple[tuple[float, float], ...], mark: tuple[float, float], labels: tuple[str, str]) -> str:
    """Return an SVG line over a logarithmic x axis with one marked point. ``labels``: of x and y.

    Source: SVG 1.1.
    """
    xs = [math.log(x) for x, _ in points]
    top = max(y for _, y in points) * 1.05 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        span = (xs[-1] - xs[0]) or 1.0
        across = _LEFT + (math.log(x) - xs[0]) / span * (_WIDTH - _LEFT - _RIGHT)
        return across, _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _BOTTOM - _TOP)

    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in points))
    at_x, at_y = place(*mark)
    base = _HEIGHT - _BOTTOM
    ticks = "".join(
        f'<text x="{place(x, 0)[0]:.1f}" y="{base + 16:.0f}" text-anchor="middle">{x:,.4g}</text>'
        for x, _ in points[:: max(1, len(points) // 6)]
    )
    rows = "".join(
        f'<text x="{_LEFT - 6:.0f}" y="{place(points[0][0], top * part)[1] + 4:.1f}" text-anchor="end">'
        f"{top * part:.3g}</text>"
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" font-size="11" role="img" '
        f'aria-label="{escape(labels[1])} against {escape(labels[0])}">'
        f'<path d="M{_LEFT:.0f},{_TOP:.0f}V{base:.0f}H{_WIDTH - _RIGHT:.0f}" fill="none" stroke="#999"/>'
        f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="2"/>'
        f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="5" fill="#d33"/>{ticks}{rows}'
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6:.0f}" text-anchor="middle">{escape(labels[0])}</text></svg>'
    )


def waste_svg(answer: Answer) -> str:
    """Return the U-shaped curve of waste against the save interval alone, as an SVG image.

    Source: ``plan.answer``.
    """
    save = answer.save
    points = tuple((point.interval_s, 100 * point.waste) for point in save.curve)
    mark = (save.interval_s.value, 100 * answer.waste.share.value)
    return curve_svg(points, mark, ("save interval, s", "waste, %")).replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def html_page(answer: Answer, title: str) -> str:
    """Return the page.

    Source: ``plan.answer``; every number on it is one of its fields.
    """
    save, waste = answer.save, answer.waste
    curve = tuple((point.interval_s, 100 * point.waste) for point in save.curve)
    growth = tuple((point.accelerators, point.useful) for point in answer.growth.points)
    now = next(point for point in answer.growth.points if point.accelerators == answer.accelerators)
    parts = [
        (part.name, f"{part.count:,.0f}", f"{24 * part.failures_per_h:.3f}", f"{part.share:.1%}")
        for part in answer.failures.parts
    ]
    helps = [(one.name, f"{one.net_per_day:,.0f}", f"{one.efficiency:.2%}") for one in answer.helps]
    warns = "".join(f'<p class="warn">{escape(text)}</p>' for text in answer.warnings)
    notes = "".join(f"<li>{escape(text)}</li>" for text in answer.assumed)
    steps = [(step.name, step.formula, step.numbers) for step in answer.explain]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>{answer.accelerators:,} accelerators fail every "
        f"<b>{answer.failures.mtbf_h.value:.3g} h</b>. Save every <b>{save.interval_s.value:,.0f} s</b>: "
        f"<b>{waste.share.value:.2%}</b> of the time is lost, {waste.money_per_day.value:,.0f} a day.</p>{warns}"
        "<h2>How often to save</h2>"
        + curve_svg(curve, (save.interval_s.value, 100 * waste.share.value), ("interval, s", "waste, %"))
        + "<h2>What fails</h2>"
        + _table(("part", "count", "a day", "share"), parts)
        + "<h2>Does adding accelerators help</h2>"
        + curve_svg(growth, (now.accelerators, now.useful), ("accelerators", "useful accelerators"))
        + f"<p>{escape(answer.growth.verdict)}</p><h2>What would help most</h2>"
        + _table(("change", "net a day", "efficiency"), helps)
        + "<h2>How it was computed</h2>"
        + _table(("figure", "formula", "numbers"), steps)
        + f'<h2>Assumptions</h2><ul class="note">{notes}</ul></html>\n'
    )
