"""What a simulation found as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from closeranks.simulate.book import Part
from closeranks.simulate.chart import chart_of, to_svg
from closeranks.simulate.compare import Comparison

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}.note{color:#666}"
)


def html_page(found: Comparison) -> str:
    """The page: chart, results with intervals, differences, shares of time, assumptions."""
    results = [
        (
            result.name,
            f"{result.goodput.mean:.3%}",
            f"{result.goodput.low:.3%} .. {result.goodput.high:.3%}",
            "" if result.formula is None else f"{result.formula:.3%}",
            f"{result.waste_per_day.mean:,.0f}",
            f"{result.incidents_per_day.mean:.2f}",
            f"{result.down_h_per_day.mean:.2f}",
            f"{result.worst_loss_s:,.0f}",
        )
        for result in found.results
    ]
    head = (
        "policy",
        "goodput",
        "95 %",
        "closed form",
        "wasted a day",
        "incidents a day",
        "h down a day",
        "worst loss, s",
    )
    differences = [
        (d.name, f"{d.goodput.mean:+.3%}", f"{d.goodput.low:+.3%} .. {d.goodput.high:+.3%}", d.verdict)
        for d in found.differences
    ]
    shares = [(result.name, *(f"{result.shares.get(part, 0.0):.3%}" for part in Part)) for result in found.results]
    notes = "".join(f"<li>{escape(text)}</li>" for text in found.assumed)
    title = f"{found.accelerators:,} accelerators, {found.days:g} days, {found.replicas} replicas"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1>{to_svg(chart_of(found))}{_table(head, results)}"
        + (f"<h2>Against {escape(found.results[0].name)}</h2>" if differences else "")
        + (_table(("policy", "goodput", "95 %", "verdict"), differences) if differences else "")
        + "<h2>Where the time went</h2>"
        + _table(("policy", *(part.value for part in Part)), shares)
        + f'<h2>Assumptions</h2><ul class="note">{notes}</ul></html>\n'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"
