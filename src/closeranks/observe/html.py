"""The report as one HTML file that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import Final

from closeranks.events import Category, Record, StepClosed
from closeranks.faults import CATALOGUE
from closeranks.observe.charts import Axis, Mark, css_class, curve, timeline
from closeranks.observe.history import History, history_of
from closeranks.observe.incidents import Incident
from closeranks.observe.nodes import coordinator_text, seats_on, span_text
from closeranks.observe.report import NBSP, Report, mean_loss, percent_text, phases_text, seconds_text
from closeranks.observe.saves import lines_of
from closeranks.observe.timeline import lanes

_STYLE: Final = """
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1c1e21;--soft:#626a73;--line:#e2e4e8;
--useful:#2f8f5b;--repeated:#d3a021;--stalled:#d1453b;--start-up:#4a7fc1;--snapshot:#8a63c4;--spare-idle:#8fb3bd;
--shut-down:#8b939c;--unknown:#c9cdd2;--good:#1f7a49;--bad:#b3271e}
@media (prefers-color-scheme:dark){:root{--bg:#15171a;--card:#1d2024;--ink:#e6e8ea;--soft:#98a1ab;--line:#31363c;
--useful:#49b27a;--repeated:#dcb24a;--stalled:#e8675d;--start-up:#6d9fdc;--snapshot:#a888dc;--spare-idle:#5f8591;
--shut-down:#6b737c;--unknown:#454b52;--good:#5cc88e;--bad:#f07f76}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:22px;margin:0 0 2px}h2{font-size:16px;margin:0 0 12px}
.soft{color:var(--soft)}.small{font-size:13px}code,pre{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace}
pre{overflow:auto;background:var(--bg);border:1px solid var(--line);border-radius:6px;padding:10px;margin:8px 0 0}
code{overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin-top:18px}
.badge{display:inline-block;border-radius:999px;padding:1px 10px;font-size:13px;border:1px solid currentColor;
vertical-align:3px;margin-left:8px}
.good{color:var(--good)}.bad{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:12px;margin-top:18px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:22px;font-weight:600;white-space:nowrap}.tile span{color:var(--soft);font-size:13px}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}
svg .lane{fill:var(--ink)}svg rect{shape-rendering:crispEdges}svg .grid{stroke:var(--line);stroke-width:1}
svg .mark{stroke:var(--stalled);stroke-width:1;stroke-dasharray:3 3}
svg .takeover{stroke:var(--start-up);stroke-width:1.5;stroke-dasharray:2 3}svg .node{fill:#fff;font-size:11px}
svg polyline{fill:none;stroke:var(--start-up);stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}
.useful{fill:var(--useful);background:var(--useful)}.repeated{fill:var(--repeated);background:var(--repeated)}
.stalled{fill:var(--stalled);background:var(--stalled)}.start-up{fill:var(--start-up);background:var(--start-up)}
.snapshot{fill:var(--snapshot);background:var(--snapshot)}
.spare-idle{fill:var(--spare-idle);background:var(--spare-idle)}
.shut-down{fill:var(--shut-down);background:var(--shut-down)}.unknown{fill:var(--unknown);background:var(--unknown)}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;margin-top:12px;font-size:13px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.bar{display:flex;height:26px;border-radius:6px;overflow:hidden}.bar div{min-width:1px}
dl{margin:14px 0 0;font-size:13px}dt{font-weight:600}dd{margin:0 0 6px;color:var(--soft)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}
th{font-weight:500;color:var(--soft);font-size:13px}th,td{text-align:left;padding:6px 12px 6px 0;
border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
details{border-bottom:1px solid var(--line);padding:8px 0}details:last-child{border:0}summary{cursor:pointer}
.phases{display:flex;height:14px;border-radius:4px;overflow:hidden;margin:8px 0 4px;max-width:100%}
.phases div{min-width:1px}
"""

# Ten for the ten parts of a recovery, in the order in which they appear.
_PHASE_SHADES: Final = (
    *("#7d8793", "#d1453b", "#e07b39", "#d3a021", "#b5576f"),
    *("#8a63c4", "#4a7fc1", "#3d9aa8", "#5d7f4e", "#2f8f5b"),
)


def page(records: Sequence[Record], report: Report) -> str:
    """One HTML document. All texts of the run are escaped; the document forbids itself to load or run anything."""
    history = history_of(records)
    axis = Axis(span=history.span, marks=_marks(history, report))
    body = "".join(
        (
            _head(report),
            _tiles(report),
            _goodput(report),
            _saves(report),
            _section("Seats and spares over time", timeline(axis, lanes(history))),
            _curves(axis, history.steps),
            _section("Incidents", _incident_table(report)),
            _nodes(report),
            _problems(report),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>closeranks: {escape(report.run)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _head(report: Report) -> str:
    tone = {"completed": "good", "failed": "bad"}.get(report.outcome, "soft")
    code = "" if report.exit_code is None else f", exit code {report.exit_code}"
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.began_wall_s))
    return (
        f'<h1>Run {escape(report.run)}<span class="badge {tone}">{escape(report.outcome)}{code}</span></h1>'
        f'<div class="soft">{began}. {escape(report.reason)}</div>'
        f"<div><code>{escape(' '.join(report.command))}</code></div>"
    )


def _tiles(report: Report) -> str:
    loss = "-" if report.last_loss is None else f"{report.last_loss:.4f}"
    values = (
        ("goodput", percent_text(report.goodput)),
        ("durable goodput", percent_text(report.durable_goodput)),
        ("ETTR", percent_text(report.ettr)),
        ("incidents", str(len(report.incidents))),
        ("steps lost", str(report.steps_lost)),
        ("steps closed", f"{report.steps:,}"),
        ("last loss", loss),
        ("wall time", f"{seconds_text(report.wall_s)} s"),
    )
    tiles = "".join(f'<div class="tile"><b>{escape(value)}</b><span>{name}</span></div>' for name, value in values)
    return f'<div class="tiles">{tiles}</div>'


def _nodes(report: Report) -> str:
    """Empty for a run on one node."""
    if not report.nodes:
        return ""
    rows = "".join(
        f"<tr><td>{escape(row.node)}<td>{escape(row.hostname or '-')}"
        f"<td>{escape(seats_on(report.sittings, row.node) or '-')}<td>{span_text(row)}"
        f"<td>{'<br>'.join(map(escape, row.events)) or '-'}"
        f'<td class="n">{row.decisions_missed if row.journal else "-"}</tr>'
        for row in report.nodes
    )
    leaders = "".join(f"<li>{escape(coordinator_text(row))}</li>" for row in report.coordinators)
    return _section(
        "Nodes",
        '<div class="scroll"><table><tr><th>node<th>host<th>seats<th>journal, s<th>what became of it'
        f'<th class="n">decisions missed</tr>{rows}</table></div>'
        f'<p class="soft small">Coordinators</p><ul class="small">{leaders}</ul>',
    )


def _saves(report: Report) -> str:
    """Empty for a run without a store."""
    if report.saves is None:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines_of(report.saves))
    return _section("State that lasts", f"<ul>{items}</ul>")


def _goodput(report: Report) -> str:
    shares = [(c, report.seconds[c]) for c in Category if report.seconds.get(c, 0.0) > 0]
    bars, legend = [], []
    for category, seconds in shares:
        share = 100 * seconds / report.place_s if report.place_s else 0.0
        text = f"{category.value}: {seconds_text(seconds)} s, {share:.1f} %"
        bars.append(f'<div class="{css_class(category)}" style="width:{share:.3f}%" title="{escape(text)}"></div>')
        legend.append(f'<span><i class="{css_class(category)}"></i>{escape(text)}</span>')
    stalled = ", ".join(f"{part} {seconds_text(part_s)} s" for part, part_s in report.stalled.items())
    split = f'<p class="soft small">Stalled, by part of the recoveries: {escape(stalled)}.</p>' if stalled else ""
    terms = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(meaning.strip())}</dd>"
        for name, _, meaning in (text.partition(":") for text in report.definitions.values())
    )
    body = f'<div class="bar">{"".join(bars)}</div><div class="legend">{"".join(legend)}</div>{split}<dl>{terms}</dl>'
    return _section(f"Where {seconds_text(report.place_s)} process-seconds went", body)


def _marks(history: History, report: Report) -> tuple[Mark, ...]:
    incidents = (
        Mark(history.span.begin_s + row.at_s, f"incident {row.incident}: {row.summary}") for row in report.incidents
    )
    takeovers = (
        Mark(history.span.begin_s + row.at_s, f"coordinator: {coordinator_text(row)}", interrupts=False)
        for row in report.coordinators[1:]
    )
    return (*incidents, *takeovers)


def _curves(axis: Axis, steps: Sequence[StepClosed]) -> str:
    losses = [(step.closed_mono_s, loss) for step in steps if (loss := mean_loss(step)) is not None]
    times = [(step.closed_mono_s, step.closed_mono_s - step.began_mono_s) for step in steps]
    return "".join(
        (
            _section("Loss (mean over the seats)", curve(axis, losses, "loss")),
            _section("Step time, seconds", curve(axis, times, "step time", floor=0.0)),
        )
    )


# --- incidents --------------------------------------------------------------------------------------------------


def _incident_table(report: Report) -> str:
    if not report.incidents:
        return '<p class="soft">None.</p>'
    longest_s = max(sum(row.phases.values()) for row in report.incidents)
    shades = _shades(report.incidents)
    rows = "".join(_incident_row(row) for row in report.incidents)
    legend = "".join(f'<span><i style="background:{shade}"></i>{escape(part)}</span>' for part, shade in shades.items())
    details = "".join(_incident_details(row, longest_s, shades) for row in report.incidents)
    return (
        '<div class="scroll"><table><tr><th>#<th class="n">at, s<th>seats<th>fault<th>rung'
        f'<th class="n">first new step, s<th class="n">normal speed, s<th class="n">steps lost'
        f"<th>outcome</tr>{rows}</table></div>"
        f'<div class="legend">{legend}</div>{details}'
    )


def _shades(rows: Sequence[Incident]) -> dict[str, str]:
    parts = dict.fromkeys(part for row in rows for part in row.phases)
    return {part: _PHASE_SHADES[index % len(_PHASE_SHADES)] for index, part in enumerate(parts)}


def _incident_row(row: Incident) -> str:
    tone = {"recovered": "good", "stopped": "bad"}.get(row.outcome, "soft")
    rungs = ", ".join(taken.rung.value for taken in row.rungs) or "-"
    lost = "-" if row.steps_lost is None else str(row.steps_lost)
    return (
        f'<tr><td>{row.incident}<td class="n">{seconds_text(row.at_s)}<td>{", ".join(map(str, row.seats))}'
        f'<td>{escape(row.fault)}<td>{escape(rungs)}<td class="n">{seconds_text(row.first_step_s)}'
        f'<td class="n">{seconds_text(row.normal_s)}<td class="n">{lost}<td class="{tone}">{escape(row.outcome)}</tr>'
    )


def _incident_details(row: Incident, longest_s: float, shades: dict[str, str]) -> str:
    all_s = sum(row.phases.values())
    bars = "".join(
        f'<div style="width:{100 * part_s / all_s if all_s else 0:.2f}%;background:{shades[part]}" '
        f'title="{escape(part)} {seconds_text(part_s)} s"></div>'
        for part, part_s in row.phases.items()
    )
    width = 100 * all_s / longest_s if longest_s else 0.0
    phases = f"seconds: {phases_text(row.phases, NBSP)}"
    lines = [f"term {taken.term}: {taken.rung.value}, because {taken.reason}" for taken in row.rungs]
    lines += [f"{stack.process} was at {stack.summary}; all stacks: {stack.path}" for stack in row.stacks]
    fault = CATALOGUE.get(row.fault)
    if fault is not None:
        lines.append(f"diagnosis: {row.fault}, confidence {100 * row.confidence:.0f} %; {'; '.join(row.evidence)}")
        lines.append(f"{fault.summary} {fault.advice}")
    crashes = "".join(
        f"<div>{escape(crash.process)} at {escape(crash.where)}, step {crash.step}: "
        f"<b>{escape(crash.error)}: {escape(crash.message)}</b></div><pre>{escape(crash.traceback)}</pre>"
        for crash in row.crashes
    )
    state = "" if row.outcome == "recovered" else " open"
    return (
        f"<details{state}><summary>Incident {row.incident}: {escape(row.summary)}"
        f'<div class="phases" style="width:{width:.2f}%">{bars}</div>'
        f'<span class="soft">{escape(phases)}</span></summary>'
        f"{''.join(f'<div>{escape(line)}</div>' for line in lines)}{crashes}</details>"
    )


def _problems(report: Report) -> str:
    return _section("The journal itself", "".join(f"<div>{escape(problem)}</div>" for problem in report.problems))
