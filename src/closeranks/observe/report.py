"""The report of a run, as a value with a stable schema, as JSON and as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from closeranks.events import Category, Record, StepClosed, TimerSummary
from closeranks.faults import CATALOGUE
from closeranks.observe.goodput import DURABLE_DEFINITION, ETTR_DEFINITION, GOODPUT_DEFINITION, Place, ledger
from closeranks.observe.health import Health, health_of, print_health
from closeranks.observe.history import History, history_of
from closeranks.observe.incidents import Incident, incidents
from closeranks.observe.nodes import (
    NO_NODES,
    CoordinatorRow,
    NodeRow,
    Nodes,
    Sitting,
    coordinator_text,
    seats_on,
    span_text,
)
from closeranks.observe.saves import Saves, lines_of, saves_of
from closeranks.observe.stalls import STALL_PARTS
from closeranks.observe.text import counted, one_line

SCHEMA_VERSION: Final = 1
UNFINISHED: Final = "unfinished"
NBSP: Final = "\N{NO-BREAK SPACE}"

COLOURS: Final = {
    Category.USEFUL: "green",
    Category.REPEATED: "yellow",
    Category.STALLED: "red",
    Category.START_UP: "blue",
    Category.SNAPSHOT: "magenta",
    Category.SPARE_IDLE: "cyan",
    Category.SHUT_DOWN: "bright_black",
    Category.UNKNOWN: "white",
}


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """Operation timings of one seat."""

    seat: int
    name: str
    count: int
    p50_s: float
    p99_s: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did and what its failures cost. Fields are only ever added; ratios are None where unmeasured."""

    schema_version: int
    run: str
    command: tuple[str, ...]
    outcome: str  # "completed", "failed", "stopped", or "unfinished": still going on, or killed
    exit_code: int | None
    reason: str
    began_wall_s: float
    wall_s: float
    seats: int
    spares: int
    steps: int  # closed, each counted once
    steps_repeated: int
    steps_lost: int
    step_median_s: float | None
    last_loss: float | None  # mean over the seats that reported one
    goodput: float | None
    durable_goodput: float | None
    ettr: float | None
    definitions: dict[str, str]
    place_s: float
    seconds: dict[Category, float]
    stalled: dict[str, float]
    places: tuple[Place, ...]
    incidents: tuple[Incident, ...]
    timers: tuple[Timer, ...]
    problems: tuple[str, ...]  # of the journal itself
    saves: Saves | None = None  # None: the run has no store
    nodes: tuple[NodeRow, ...] = ()  # these three are empty for a run on one node
    coordinators: tuple[CoordinatorRow, ...] = ()
    sittings: tuple[Sitting, ...] = ()
    health: Health = Health()


def report_of(records: Sequence[Record], problems: Iterable[str] = (), nodes: Nodes = NO_NODES) -> Report:
    """The report of a run, finished or not; ``nodes``: of a job on several, whose records were merged.

    Raises:
        EmptyJournalError: there are no records.
        LedgerError: the records contradict each other.
    """
    history = history_of(records)
    book = ledger(history)
    rows = incidents(history, records)
    ended = history.ended
    return Report(
        schema_version=SCHEMA_VERSION,
        run=history.run,
        command=() if history.started is None else history.started.command,
        outcome=UNFINISHED if ended is None else ended.outcome,
        exit_code=None if ended is None else ended.exit_code,
        reason="the journal has no end: the run goes on, or was killed" if ended is None else ended.reason,
        began_wall_s=history.began_wall_s,
        wall_s=book.wall_s,
        seats=history.seats,
        spares=0 if history.started is None else history.started.spares,
        steps=len({step.step for step in history.steps}),
        steps_repeated=sum(step.repeated for step in history.steps),
        steps_lost=sum(row.steps_lost or 0 for row in rows),
        step_median_s=_median_step_s(history),
        last_loss=mean_loss(history.steps[-1]) if history.steps else None,
        goodput=book.goodput,
        durable_goodput=book.durable_goodput,
        ettr=book.ettr,
        definitions={"goodput": GOODPUT_DEFINITION, "durable_goodput": DURABLE_DEFINITION, "ettr": ETTR_DEFINITION},
        place_s=book.place_s,
        seconds=book.seconds,
        stalled={part: book.stalled[part] for part in STALL_PARTS if part in book.stalled},
        places=book.places,
        incidents=rows,
        timers=_timers(records),
        problems=tuple(problems),
        saves=saves_of(records),
        nodes=nodes.rows,
        coordinators=nodes.coordinators,
        sittings=nodes.sittings,
        health=health_of(records),
    )


def to_json(report: Report) -> bytes:
    """The report as one JSON object, indented."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2)


def mean_loss(step: StepClosed) -> float | None:
    """The mean of the losses that seats reported; None if none did."""
    reported = [loss for loss in step.losses if loss is not None]
    return sum(reported) / len(reported) if reported else None


def _median_step_s(history: History) -> float | None:
    if not history.steps:
        return None
    return statistics.median(step.closed_mono_s - step.began_mono_s for step in history.steps)


def _timers(records: Sequence[Record]) -> tuple[Timer, ...]:
    last = {(r.event.seat, r.event.name): r.event for r in records if isinstance(r.event, TimerSummary)}
    return tuple(
        Timer(seat=seat, name=name, count=event.count, p50_s=event.p50_s, p99_s=event.p99_s)
        for (seat, name), event in sorted(last.items())
    )


# --- as text ----------------------------------------------------------------------------------------------------


def print_report(console: Console, report: Report) -> None:
    """Write the report for a person; plain text where the console is no terminal."""
    _print_head(console, report)
    _print_goodput(console, report)
    _print_incidents(console, report)
    print_health(console, report.health)
    _print_nodes(console, report)
    _print_saves(console, report)
    _print_timers(console, report)
    for problem in report.problems:
        console.print(Text(f"journal: {problem}", style="yellow"))


def seconds_text(seconds: float | None) -> str:
    """Seconds with as many digits as a reader wants; a dash where there are none."""
    if seconds is None:
        return "-"
    if 0 < seconds < 0.0005:  # noqa: PLR2004 - would be shown as nothing
        return "<0.001"
    for limit_s, digits in ((0.1, 3), (10.0, 2), (1000.0, 1)):
        if seconds < limit_s:
            return f"{seconds:.{digits}f}"
    return f"{seconds:,.0f}"


def percent_text(ratio: float | None) -> str:
    """A ratio as a percentage; says so where it was not measured."""
    return "not measured" if ratio is None else f"{100 * ratio:.1f} %"


def outcome_style(outcome: str) -> str:
    """The colour of an outcome of a run or an incident."""
    return {"completed": "green", "recovered": "green", "failed": "red", "stopped": "yellow"}.get(outcome, "cyan")


def _print_head(console: Console, report: Report) -> None:
    head = Text.assemble(
        ("run ", "dim"), (report.run, "bold"), "  ", (report.outcome, f"bold {outcome_style(report.outcome)}")
    )
    if report.exit_code is not None:
        head.append(f" (exit code {report.exit_code})", "dim")
    head.append(f": {one_line(report.reason)}")
    console.print(head)
    console.print(Text(one_line(" ".join(report.command)), style="dim"))
    console.print(Text(f"{_sizes_text(report)}\n{_lost_text(report)}, incidents: {len(report.incidents)}"))


def _sizes_text(report: Report) -> str:
    sizes = f"{counted(report.seats, 'seat')}, {counted(report.spares, 'spare')}, {seconds_text(report.wall_s)} s"
    if report.goodput is None:
        return sizes
    loss = "" if report.last_loss is None else f", last loss {report.last_loss:.4f}"
    step = "" if report.step_median_s is None else f", median step {seconds_text(report.step_median_s)} s"
    return f"{sizes}, {counted(report.steps, 'step')} closed{step}{loss}"


def _lost_text(report: Report) -> str:
    if report.goodput is None:
        return "steps are not seen: the script does not use the library, and begins anew after a failure"
    return f"steps lost: {report.steps_lost}, steps repeated: {report.steps_repeated}"


def _print_goodput(console: Console, report: Report) -> None:
    table = Table(title="Where the process-seconds went", title_justify="left", box=None, pad_edge=False)
    table.add_column("category")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for category in Category:
        if category in report.seconds:
            _share_row(table, category.value, report.seconds[category], report.place_s, COLOURS[category])
        if category is Category.STALLED:
            for part, part_s in report.stalled.items():
                _share_row(table, f"  {part}", part_s, report.place_s, "dim")
    _share_row(table, "all seats and spares", report.place_s, report.place_s, "bold")
    console.print()
    console.print(table)
    ratios = Table(box=None, pad_edge=False, show_header=False)
    ratios.add_column(style="bold", no_wrap=True)
    ratios.add_column(style="bold green", no_wrap=True, justify="right")
    ratios.add_column(style="dim", max_width=90)
    for ratio, definition in (
        (report.goodput, report.definitions["goodput"]),
        (report.durable_goodput, report.definitions["durable_goodput"]),
        (report.ettr, report.definitions["ettr"]),
    ):
        name, _, meaning = definition.partition(":")
        ratios.add_row(name.partition(" (")[0], percent_text(ratio), _sentence(meaning))
    console.print()
    console.print(ratios)


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:]


def _share_row(table: Table, name: str, seconds: float, all_s: float, style: str) -> None:
    share = f"{100 * seconds / all_s:.1f} %" if all_s > 0 else "-"
    table.add_row(Text(name, style=style), seconds_text(seconds), share)


def _print_incidents(console: Console, report: Report) -> None:
    console.print()
    if not report.incidents:
        console.print(Text("No incidents."))
        return
    table = Table(title="Incidents (seconds from the first sign)", title_justify="left", box=None, pad_edge=False)
    for name in ("#", "at", "seats", "fault", "rung"):
        table.add_column(name)
    for name in ("first new step", "normal speed", "steps lost"):
        table.add_column(name, justify="right", max_width=8)
    table.add_column("outcome")
    for row in report.incidents:
        table.add_row(
            str(row.incident),
            seconds_text(row.at_s),
            ", ".join(map(str, row.seats)),
            Text(row.fault),
            Text(", ".join(taken.rung.value for taken in row.rungs) or "-"),
            seconds_text(row.first_step_s),
            seconds_text(row.normal_s),
            "-" if row.steps_lost is None or report.goodput is None else str(row.steps_lost),
            Text(row.outcome, style=outcome_style(row.outcome)),
        )
    console.print(table)
    for row in report.incidents:
        _print_incident(console, row)


def _print_incident(console: Console, row: Incident) -> None:
    phases = phases_text(row.phases, NBSP if console.is_terminal else " ")
    console.print()
    console.print(Text.assemble((f"incident {row.incident}: ", "bold"), row.summary))
    _indented(console, f"phases, s: {phases or '-'}", "dim")
    for taken in row.rungs:
        _indented(console, f"term {taken.term}: {taken.rung.value}, because {taken.reason}", "dim")
    if row.canary:
        _indented(console, row.canary, "dim")
    for crash in row.crashes:
        _indented(console, f"{crash.process} at {crash.where}, step {crash.step}: {crash.error}: {crash.message}")
    for stack in row.stacks:
        _indented(console, f"{stack.process} was at {stack.summary}; all stacks: {stack.path}", "dim")
    fault = CATALOGUE.get(row.fault)
    if row.outcome != "recovered" and fault is not None:
        _indented(console, f"advice: {fault.advice}")
        for crash in row.crashes:
            _indented(console, crash.traceback, "dim")


def phases_text(phases: Mapping[str, float], space: str) -> str:
    """Each phase with its seconds, kept together by ``space``; those that took no time are left out."""
    texts = (f"{part} {seconds_text(part_s)}" for part, part_s in phases.items() if part_s > 0)
    return "  ".join(text.replace(" ", space) for text in texts)


def _indented(console: Console, text: str, style: str = "") -> None:
    console.print(Padding(Text(text, style=style), (0, 0, 0, 2), expand=False))


def _print_nodes(console: Console, report: Report) -> None:
    if not report.nodes:
        return
    table = Table(title="Nodes", title_justify="left", box=None, pad_edge=False)
    for name in ("node", "host", "seats", "journal, s", "what became of it"):
        table.add_column(name)
    table.add_column("decisions missed", justify="right", max_width=9)
    for row in report.nodes:
        table.add_row(
            Text(row.node),
            Text(row.hostname or "-"),
            Text(seats_on(report.sittings, row.node) or "-"),
            span_text(row),
            Text(one_line("; ".join(row.events)) or "-"),
            str(row.decisions_missed) if row.journal else "-",
        )
    console.print()
    console.print(table)
    console.print()
    console.print(Text("Coordinators"), style="italic")
    for leader in report.coordinators:
        _indented(console, one_line(coordinator_text(leader)))


def _print_saves(console: Console, report: Report) -> None:
    if report.saves is None:
        return
    console.print()
    console.print(Text("State that lasts"), style="italic")
    for line in lines_of(report.saves):
        style = "bold red" if line.startswith("PROBLEM") else ""
        _indented(console, line, style)


def _print_timers(console: Console, report: Report) -> None:
    if not report.timers:
        return
    table = Table(title="Timers", title_justify="left", box=None, pad_edge=False)
    table.add_column("seat")
    table.add_column("operation")
    for name in ("count", "p50 s", "p99 s"):
        table.add_column(name, justify="right")
    for timer in report.timers:
        table.add_row(str(timer.seat), Text(timer.name), f"{timer.count:,}", f"{timer.p50_s:.4g}", f"{timer.p99_s:.4g}")
    console.print()
    console.print(table)
