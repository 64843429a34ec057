"""``closeranks diagnose LOGS...``: what happened, who did it, what to do, from logs of any launcher."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Never

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from closeranks.cli.byte_bar import byte_bar
from closeranks.diagnose.evidence import Evidence
from closeranks.diagnose.judge import judge
from closeranks.diagnose.labels import harmless
from closeranks.diagnose.telling import tell, timeline
from closeranks.diagnose.verdict import SCHEMA, Verdict
from closeranks.gather.collecting import Collected, Collector
from closeranks.gather.node_past import node_past
from closeranks.gather.runs import RunError, last_incident
from closeranks.gather.sources import SourcesError, logs_in, runs_in
from closeranks.run.node_history import HistoryProblem

UNKNOWN, BAD_INPUT, INTERRUPTED = 3, 2, 130
_STDIN = Path("/dev/stdin")
_EVIDENCE_MAX = 1000  # in the JSON form


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON form. Fields are added, never changed, under one number of ``schema``."""

    schema: int
    verdict: Verdict
    timeline: list[Evidence]
    files: int
    read_bytes: int
    recordings: int
    long_lines: int
    problems: tuple[str, ...]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("diagnose")(diagnose)


def diagnose(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LOGS...",
            help="Logs, folders of logs of all ranks, folders of runs, - for stdin; packed (gz, xz, bz2, zst) or not.",
            show_default=False,
        ),
    ] = None,
    kernel_logs: Annotated[
        list[Path] | None,
        typer.Option("--kernel-log", metavar="FILE", help="Output of dmesg or journalctl -k.", show_default=False),
    ] = None,
    flight_recorder: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Dumps of torch's flight recorder, JSON or pickle.", show_default=False),
    ] = None,
    node_history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What earlier runs wrote down about nodes (nodes.jsonl).", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Name the fault behind a failed job, who is its cause, and what to do; prove it with lines.

    Exit status: 0 a fault is named; 3 unknown; 2 nothing could be read, or bad options.
    """
    if not (logs or kernel_logs or flight_recorder):
        _fail("nothing to read; name logs, a folder of them, --kernel-log or --flight-recorder")
    if node_history is not None and not node_history.exists():
        typer.echo(f"closeranks diagnose: {harmless(str(node_history))}: not there, so nothing is remembered", err=True)
    try:
        past = node_past(node_history) if node_history is not None else ()
        collected = _collect(list(map(_named, logs or [])), kernel_logs or [], flight_recorder or [])
    except (SourcesError, RunError, HistoryProblem, OSError) as error:
        _fail(harmless(str(error)))
    except KeyboardInterrupt:
        typer.echo("closeranks diagnose: interrupted; no verdict", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if not (collected.read_bytes or collected.recordings or collected.evidence):
        empty = f"{collected.files} file(s) and not a byte in them; was the output written elsewhere?"
        _fail("; ".join(map(harmless, collected.problems[:3])) or empty)
    verdict = judge((*collected.evidence, *past), kernel_read=collected.kernel_read, ranks=collected.ranks)
    if as_json:
        sys.stdout.buffer.write(_json(verdict, collected) + b"\n")
    else:
        _print(verdict, collected)
    raise typer.Exit(0 if verdict.known else UNKNOWN)


def _named(place: Path) -> Path:
    return _STDIN if str(place) == "-" else place


def _collect(places: list[Path], kernel_logs: list[Path], recordings: list[Path]) -> Collected:
    runs = runs_in(places)
    incidents = [last_incident(run) for run in runs]
    files = [log for incident in incidents for log in incident.logs]
    others = [place for place in places if place not in runs]
    files += logs_in(others) if others else []
    files += logs_in(kernel_logs, kernel=True) if kernel_logs else []
    with byte_bar(wanted=bool(files)) as progress:
        task = progress.add_task("reading", total=sum(file.size_bytes for file in files))
        collector = Collector(lambda stored_bytes: progress.advance(task, stored_bytes))
        collector.scan(files)
    for incident in incidents:
        collector.add(incident.evidence, incident.problems)
    for folder in recordings:
        collector.compare_recordings(folder)
    return collector.collected()


def _print(verdict: Verdict, collected: Collected) -> None:
    console = Console(soft_wrap=True)
    for line in tell(verdict, collected.evidence):
        console.print(Text(line.text, style="bold" if line.heading else ""))
    cut = f", {collected.long_lines} endless lines were cut" if collected.long_lines else ""
    console.print(Text(f"read {collected.files} files, {collected.read_bytes} bytes{cut}", style="dim"))
    for problem in collected.problems:
        typer.echo(f"closeranks diagnose: {harmless(problem)}", err=True)


def _json(verdict: Verdict, collected: Collected) -> bytes:
    return msgspec.json.encode(
        Report(
            schema=SCHEMA,
            verdict=verdict,
            timeline=timeline(collected.evidence)[:_EVIDENCE_MAX],
            files=collected.files,
            read_bytes=collected.read_bytes,
            recordings=collected.recordings,
            long_lines=collected.long_lines,
            problems=collected.problems,
        )
    )


def _fail(message: str) -> Never:
    typer.echo(f"closeranks diagnose: {message}", err=True)
    raise typer.Exit(BAD_INPUT)
