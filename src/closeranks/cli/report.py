"""``closeranks report RUN_DIR...``: what a run did and what its failures cost."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Never

import msgspec
import typer
from rich.console import Console

from closeranks.cli.journals import JournalsError, journals_of, read_journals
from closeranks.cli.supervisor import Life, life_of, life_of_writer
from closeranks.events import Record, RunEnded, RunStarted
from closeranks.journal import follow
from closeranks.observe.goodput import LedgerError
from closeranks.observe.history import EmptyJournalError
from closeranks.observe.html import page
from closeranks.observe.live import LiveDisplay, LiveView
from closeranks.observe.merge import Merged, MixedRunsError, merge
from closeranks.observe.nodes import nodes_of
from closeranks.observe.report import UNFINISHED, print_report, report_of, to_json

NOT_USABLE = 1  # there is a journal, but nothing to report from it
BAD_INPUT = 2
_FRAME_S = 0.1
_GONE_S = 1.0  # time for the last records of a dead supervisor to be read
_WAIT_SAID_S = 1.0
_FILE_WIDTH = 160


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("report")(report)


def report(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...",
            help="The folder of a run, or a journal; of a job on several nodes, each node's or one above them all.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    live: Annotated[bool, typer.Option("--follow", help="Watch the run until it ends or Ctrl-C, then report.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained file.", show_default=False)
    ] = None,
) -> None:
    """Show goodput, ETTR and incidents of a run that ended, goes on, or was killed.

    Exit status: 0 reported; 1 the journal holds nothing that can be reported; 2 no such run, or bad options.
    """
    if as_json and live:
        _fail("--json shows a report and --follow watches; choose one", BAD_INPUT)
    try:
        places = journals_of(run_dirs)
        if live:
            _watch(_only(places))
        merged = merge(read_journals(places))
        _show(merged, as_json=as_json, html=html)
    except (JournalsError, MixedRunsError) as error:
        _fail(str(error), BAD_INPUT)
    except EmptyJournalError as error:
        _fail(f"{', '.join(map(str, places))}: {error}", NOT_USABLE)
    except LedgerError as error:
        _fail(f"{', '.join(map(str, places))}: the records contradict each other: {error}", NOT_USABLE)


def _show(merged: Merged, *, as_json: bool, html: Path | None) -> None:
    made = report_of(merged.records, merged.problems, nodes_of(merged))
    if made.outcome == UNFINISHED:
        made = msgspec.structs.replace(made, reason=life_of(merged.records).value)
    if html is not None:
        _write(html, page(merged.records, made))
    if as_json:
        sys.stdout.buffer.write(to_json(made) + b"\n")
    elif html is None:
        print_report(_console(), made)
    else:
        _console().print(f"wrote {html}", markup=False, highlight=False)


def _console() -> Console:
    """A file or a pipe has no width of its own: tables get enough to keep a row on a line."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_FILE_WIDTH if wide else None)


def _only(journals: Sequence[Path]) -> Path:
    if len(journals) > 1:
        _fail(f"--follow watches one journal, {len(journals)} were given; give the folder of one node", BAD_INPUT)
    return journals[0]


def _write(path: Path, text: str) -> None:
    """Write the file in one step: a reader sees the old one or the new one."""
    pending = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pending.write_text(text, encoding="utf-8")
        pending.replace(path)
    except OSError as error:
        pending.unlink(missing_ok=True)
        _fail(f"{path}: cannot be written: {error.strerror}", BAD_INPUT)


def _watch(journal: Path) -> None:
    """Show the run until its last record, or until nobody can write one; Ctrl-C ends the watching, not the run."""
    records: queue.SimpleQueue[Record] = queue.SimpleQueue()
    stop = threading.Event()
    reader = threading.Thread(target=_pump, args=(journal, stop, records), daemon=True)
    reader.start()
    try:
        with LiveDisplay(LiveView(_console(), seats=0, spares=0), stays=False) as display:
            _display(display, records)
    except KeyboardInterrupt:
        _note("no longer watching; the run is not touched. Up to here:")
    finally:
        stop.set()
        reader.join()


def _pump(journal: Path, stop: threading.Event, records: queue.SimpleQueue[Record]) -> None:
    for record in follow(journal, stop):
        records.put(record)


class _Silence:
    """What it means that no record comes."""

    def __init__(self) -> None:
        self._heard_s = time.monotonic()
        self._writer: Record | None = None
        self._said = False

    def hear(self, record: Record) -> None:
        self._heard_s = time.monotonic()
        if isinstance(record.event, RunStarted):
            self._writer = record

    def is_final(self) -> bool:
        silent_s = time.monotonic() - self._heard_s
        if self._writer is not None:
            return silent_s > _GONE_S and life_of_writer(self._writer) is Life.GONE
        if silent_s > _WAIT_SAID_S and not self._said:
            _note("the journal holds no record yet; waiting for the run to begin, Ctrl-C to leave")
            self._said = True
        return False


def _display(display: LiveDisplay, records: queue.SimpleQueue[Record]) -> None:
    silence, drawn_s = _Silence(), 0.0
    while True:
        try:
            record = records.get(timeout=_FRAME_S)
        except queue.Empty:
            record = None
        if record is not None:
            display.feed(record)
            silence.hear(record)
        elif silence.is_final():
            _note(f"{Life.GONE.value}. Up to its last record:")
            return
        if time.monotonic() - drawn_s >= _FRAME_S:
            display.tick()
            drawn_s = time.monotonic()
        if record is not None and isinstance(record.event, RunEnded):
            return


def _note(message: str) -> None:
    typer.echo(f"closeranks report: {message}", err=True)


def _fail(message: str, code: int) -> Never:
    typer.echo(f"closeranks report: {message}", err=True)
    raise typer.Exit(code)
