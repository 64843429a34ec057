"""``closeranks nodes``: what earlier runs remember of nodes, and a person's word about them."""

from __future__ import annotations

import getpass
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Never

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from closeranks.decide.node_records import FOR_GOOD_H, KeptOut, Line, Released
from closeranks.decide.quarantine import Admitted, By, Past, Register, admit
from closeranks.run.node_history import FILE_NAME, HistoryProblem, NodeHistory, default_file

_FAILED = 1
_HOUR_S = 3600.0
_WIDTH = 160  # of a file or a pipe

Store = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="The folder of a store, whose runs keep their history in it.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="The host name of the node.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verbs = typer.Typer(name="nodes", no_args_is_help=True, help=__doc__)
    verbs.command("ls")(ls)
    verbs.command("quarantine")(quarantine)
    verbs.command("release")(release)
    app.add_typer(verbs)


def ls(store: Store = None, as_json: AsJson = False) -> None:
    """List the nodes that are known, with their failures, and which are kept out until when."""
    history, now_s = _history(store), time.time()
    try:
        known = history.read()
    except HistoryProblem as problem:
        _fail(problem)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(_told(known, now_s, history.path)) + b"\n")
    elif known.nodes:
        console = Console(width=None if sys.stdout.isatty() else _WIDTH)
        console.print(_table(known, now_s))
    else:
        typer.echo(f"no run has written anything about nodes into {history.path}")


def quarantine(
    node: Node,
    why: Annotated[str, typer.Option(help="The reason that others will read.", show_default=False)],
    hours: Annotated[float, typer.Option(min=0.01, max=FOR_GOOD_H, help="For how long.")] = FOR_GOOD_H,
    store: Store = None,
) -> None:
    """Keep a node out of all runs that read this history, until then or until it is released."""
    reason = f"{why} ({getpass.getuser()})"
    _write(store, KeptOut(host=node, wall_s=time.time(), hours=hours, reason=reason, by=By.PERSON))
    until = "until it is released" if hours >= FOR_GOOD_H else f"for {hours:g} h"
    typer.echo(f"{node} is kept out {until}: {reason}")


def release(node: Node, store: Store = None) -> None:
    """Let a node in again; what it did before no longer counts against it."""
    _write(store, Released(host=node, wall_s=time.time()))
    typer.echo(f"{node} is released; runs that begin from now on may use it")


def _history(store: Path | None) -> NodeHistory:
    return NodeHistory(default_file(os.environ) if store is None else store / FILE_NAME)


def _write(store: Path | None, line: Line) -> None:
    if store is not None and not store.is_dir():
        _fail(HistoryProblem(f"--store {store}: expected the folder of a store, got none"))
    try:
        history = _history(store)
        checked = msgspec.json.decode(msgspec.json.encode(line), type=Line)
        history.add(checked)
    except (HistoryProblem, msgspec.ValidationError) as problem:
        _fail(problem)


def _fail(problem: Exception) -> Never:
    typer.echo(f"closeranks nodes: {problem}", err=True)
    raise typer.Exit(_FAILED)


def _told(known: Register, now_s: float, path: Path) -> dict[str, Any]:
    return {
        "file": str(path),
        "nodes": {
            host: {"stands": _stands(known, host, now_s), **msgspec.to_builtins(past)}
            for host, past in sorted(known.nodes.items())
        },
    }


def _stands(known: Register, host: str, now_s: float) -> str:
    answer = admit(known, host, now_s)
    if not isinstance(answer, Admitted):
        return "kept out"
    return "on probation" if answer.on_probation else "admitted"


def _table(known: Register, now_s: float) -> Table:
    table = Table("node", "stands", "failures", "hours of work", "newest fault", "why it is kept out", box=None)
    for host, past in sorted(known.nodes.items()):
        newest = past.failures[-1].fault if past.failures else ""
        stands = _stands(known, host, now_s)
        row = (host, stands, str(len(past.failures)), f"{past.hours:.1f}", newest, _why(past, now_s))
        table.add_row(*(_plain(cell) for cell in row))
    return table


def _why(past: Past, now_s: float) -> str:
    ban = past.quarantine
    if ban is None or now_s >= ban.until_s:
        return ""
    left_h = (ban.until_s - now_s) / _HOUR_S
    until = "until released" if left_h > FOR_GOOD_H / 2 else f"{left_h:.1f} h more"
    return f"{until}, by {ban.by}: {ban.reason}"


def _plain(text: str) -> str:
    """Nothing that a terminal or the table would take as an instruction: the file may hold anything."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("[", "\\[")
