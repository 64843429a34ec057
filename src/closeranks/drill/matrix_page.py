"""The drill matrix as one self-contained HTML page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from closeranks.drill.expected import Phase
from closeranks.drill.matrix_report import CellResult, State, said, sums_of

# A sign and a border tell the states apart as well as the colour does.
_SIGNS: Final = {
    State.RIGHT: "&#10003;",
    State.WRONG: "&#10007;",
    State.UNKNOWN: "?",
    State.NOT_RUN: "&#9675;",
    State.NOT_APPLICABLE: "&middot;",
}
_STYLE: Final = (
    "body{font:15px/1.4 system-ui,sans-serif;max-width:76rem;margin:1.5rem auto;padding:0 1rem;color:#1c1c1c}"
    "table{border-collapse:collapse;margin:1rem 0;width:100%}th,td{padding:.3rem .5rem;border:1px solid #ccc;"
    "text-align:left;vertical-align:top}th[scope=row]{font-weight:600;white-space:nowrap}"
    "th small,td small{display:block;font-weight:400;color:#555}thead th{position:sticky;top:0;background:#fff}"
    ".right{background:#e6f4e6}.wrong{background:#fbe3e0;border:3px solid #a32020}.unknown{background:#fff3cf;"
    "border:2px dashed #8a6d00}.not-run{background:#f3f3f3;color:#444}.not-applicable{color:#8a8a8a}"
    "b.sign{font-size:1.1em;margin-right:.3em}code{background:#f2f2f2;padding:0 .25em}"
)


def html_page(results: Sequence[CellResult]) -> str:
    """The page: the table, the sums, and all about each cell that is not right."""
    rows = dict.fromkeys(result.row for result in results)
    by_key = {result.key: result for result in results}
    head = "".join(f'<th scope="col">{escape(phase)}</th>' for phase in Phase)
    body = "".join(_row(row, [by_key[f"{row}:{phase}"] for phase in Phase]) for row in rows)
    legend = ", ".join(f"{sign} {escape(state)}" for state, sign in _SIGNS.items())
    told = "".join(f"<li>{escape(line)}</li>" for line in said(sums_of(results)))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Drill matrix</title>'
        f"<style>{_STYLE}</style><h1>Drill matrix</h1><ul>{told}</ul><p>{legend}. Seconds are from the strike to the "
        "first record that something is wrong.</p>"
        f'<table><thead><tr><th scope="col">fault</th>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"{_details(results)}</html>\n"
    )


def _row(name: str, cells: Sequence[CellResult]) -> str:
    control = ", negative control" if cells[0].control else ""
    told = f'<th scope="row">{escape(name)}<small>{escape(cells[0].model)}{control}</small></th>'
    return f"<tr>{told}{''.join(map(_cell, cells))}</tr>"


def _cell(cell: CellResult) -> str:
    kind = cell.state.replace(" ", "-")
    sign = f'<b class="sign">{_SIGNS[cell.state]}</b>'
    if cell.score is None:
        return f'<td class="{kind}" title="{escape(cell.why)}">{sign}<small>{escape(cell.why)}</small></td>'
    score = cell.score
    words = score.effect.value if score.detected_s is None else f"{score.detected_s:.2f} s"
    told = ", ".join(score.actions) or ("" if score.detected_s is None else score.effect.value)
    return f'<td class="{kind}">{sign}{escape(words)}<small>{escape(told)}</small></td>'


def _details(results: Sequence[CellResult]) -> str:
    bad = [result for result in results if result.state in (State.WRONG, State.UNKNOWN) and result.score is not None]
    if not bad:
        return ""
    items = "".join(
        f"<li><b>{escape(result.key)}</b> ({escape(result.state)}, {escape(result.score.effect.value)})<ul>"
        + "".join(f"<li>{escape(reason)}</li>" for reason in result.score.reasons)
        + f"</ul><code>{escape(result.replay)}</code></li>"
        for result in bad
        if result.score is not None
    )
    return f"<h2>What is not right, and how to see it again</h2><ul>{items}</ul>"
