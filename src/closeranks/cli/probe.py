"""``closeranks probe``: try this machine before it is trusted with work."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from closeranks.checkpoint.peer_wire import Address
from closeranks.decide.node_records import FOR_GOOD_H, KeptOut, Line, Passed
from closeranks.decide.quarantine import By
from closeranks.nodes.handshake import TokenProblem, read_token
from closeranks.probe.checks import Level, Subject, run_checks
from closeranks.probe.link import serving
from closeranks.probe.outcome import Failed, Outcome, Unknown, word_of
from closeranks.run.device_products import multipliers
from closeranks.run.node_history import HistoryProblem, NodeHistory, default_file

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNKNOWN: Final = 3
_REASON_CHARS: Final = 1000
_STYLES: Final = {"passed": "green", "failed": "bold red", "absent": "dim", "unknown": "yellow"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("probe", help="Try this machine: accelerators, processors, memory, storage and links.")(probe)


def probe(  # noqa: PLR0913, PLR0917 - typer reads the options from the signature
    level: Annotated[Level, typer.Option(help="start: as when a run starts; quick: a second; burn-in: minutes.")] = (
        Level.QUICK
    ),
    folder: Annotated[Path, typer.Option(help="Whose file system is written to and read back.")] = Path(),
    peer: Annotated[str, typer.Option(metavar="HOST:PORT", help="A machine that runs probe --serve.")] = "",
    serve: Annotated[str, typer.Option(metavar="HOST:PORT", help="Answer a peer's link test until Ctrl-C.")] = "",
    token_file: Annotated[Path | None, typer.Option(help="The secret that both ends of a link share.")] = None,
    accelerators: Annotated[int | None, typer.Option(min=0, help="How many there should be.")] = None,
    remember: Annotated[
        bool, typer.Option("--remember", help="Tell the history of nodes: a failure keeps this one out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Exit status: 0 when nothing is wrong, 1 when something failed, 3 when something could not be found out."""
    token = _token(token_file) if peer or serve else ""
    if serve:
        _serve(_address(serve, "--serve"), token)
        return
    subject = Subject(
        folder=folder,
        peer=_address(peer, "--peer") if peer else None,
        token=token,
        accelerators=accelerators,
        devices=multipliers(),
    )
    outcomes = _with_progress(level, subject)
    if as_json:
        sys.stdout.write(msgspec.json.encode({"level": level, "checks": outcomes}).decode() + "\n")
    else:
        _print(Console(highlight=False), outcomes)
    if remember:
        _remember(level, outcomes)
    raise typer.Exit(status_of(outcomes))


def _remember(level: Level, outcomes: dict[str, Outcome]) -> None:
    """A check that failed keeps the node out until one passes; only a burn-in in which nothing is unknown passes."""
    host, now_s = socket.gethostname(), time.time()
    failed = [f"{name}: {outcome.reason}" for name, outcome in outcomes.items() if isinstance(outcome, Failed)]
    if failed:
        reason = "; ".join(failed)[:_REASON_CHARS]
        line: Line = KeptOut(host=host, wall_s=now_s, hours=FOR_GOOD_H, reason=reason, by=By.CHECK)
    elif level is Level.BURN_IN and status_of(outcomes) == 0:
        line = Passed(host=host, wall_s=now_s)
    else:
        return
    try:
        NodeHistory(default_file(os.environ)).add(line)
    except HistoryProblem as problem:
        typer.echo(f"closeranks probe: {problem}", err=True)
        raise typer.Exit(EXIT_USAGE) from problem


def status_of(outcomes: dict[str, Outcome]) -> int:
    """The exit status. Absent is neither good nor bad; unknown is never good."""
    if any(isinstance(outcome, Failed) for outcome in outcomes.values()):
        return EXIT_FAILED
    return EXIT_UNKNOWN if any(isinstance(outcome, Unknown) for outcome in outcomes.values()) else 0


def _with_progress(level: Level, subject: Subject) -> dict[str, Outcome]:
    columns = (TextColumn("{task.description:<16}"), BarColumn(), TimeElapsedColumn())
    errors = Console(stderr=True)
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as shown:
        tasks: dict[str, TaskID] = {}

        def tell(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=1.0)
            shown.update(tasks[name], completed=share)

        return run_checks(level, subject, tell)


def _print(console: Console, outcomes: dict[str, Outcome]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, outcome in outcomes.items():
        word = word_of(outcome)
        reason = "".join(char if char.isprintable() else " " for char in outcome.reason)
        table.add_row(name, Text(word, style=_STYLES[word]), Text(reason))
    console.print(table)


def _token(file: Path | None) -> str:
    try:
        return read_token(os.environ, file)
    except TokenProblem as problem:
        typer.echo(f"closeranks probe: {problem}", err=True)
        raise typer.Exit(EXIT_USAGE) from problem


def _address(text: str, option: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 - the highest port
        typer.echo(f"closeranks probe: {option} expects HOST:PORT, got {text!r}", err=True)
        raise typer.Exit(EXIT_USAGE)
    return Address(host.strip("[]"), int(port))


def _serve(address: Address, token: str) -> None:
    try:
        with serving(address, token) as real:
            typer.echo(f"answering link tests at {real}; Ctrl-C ends it", err=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        return
    except OSError as error:
        typer.echo(f"closeranks probe: nothing can listen at {address}: {error.strerror}", err=True)
        raise typer.Exit(EXIT_USAGE) from error
