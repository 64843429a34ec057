"""``closeranks drill --matrix``: every kind of fault in every phase, scored."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from closeranks.drill.expected import Phase
from closeranks.drill.matrix import Cell, chosen
from closeranks.drill.matrix_page import html_page
from closeranks.drill.matrix_report import (
    NOT_ASKED_FOR,
    CellResult,
    State,
    completed,
    empty,
    outcome_of,
    said,
    sums_of,
)
from closeranks.drill.matrix_runs import MatrixRuns
from closeranks.drill.runner import Runner

RESULTS = "matrix.jsonl"  # in the folder of the runs; one line a cell, the last one of a cell counts
_INTERRUPTED = 130
_STYLE = {
    State.RIGHT: "green",
    State.WRONG: "bold red",
    State.UNKNOWN: "yellow",
    State.NOT_RUN: "dim",
    State.NOT_APPLICABLE: "dim",
}


class MatrixOptions(NamedTuple):
    """What the command line asks of the matrix."""

    cells: str
    seed: int
    folder: Path
    resume: bool
    keep: bool  # the runs of right cells, too
    html: Path | None
    as_json: bool
    command: tuple[str, ...]


class Unreadable(ValueError):
    """A line of earlier results cannot be read; nothing was changed."""


def drill_matrix(console: Console, options: MatrixOptions) -> int:
    """Make the cells, show what they prove, and return the exit status. What Ctrl-C leaves undone is shown as empty.

    Raises:
        UnknownCellError: a word of ``cells`` names no cell; nothing was started.
        Unreadable: earlier results cannot be read; nothing was started.
    """
    cells = chosen(options.cells)
    done = earlier(options.folder / RESULTS, options.seed) if options.resume else {}
    found = {key: result for key, result in done.items() if key in {cell.key for cell in cells}}
    interrupted = False
    try:
        _make(console, options, [cell for cell in cells if cell.key not in found], found)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; what is there follows", style="yellow")
    results = completed([*found.values(), *(_interrupted(cell) for cell in cells if cell.key not in found)])
    show(console, results)
    if options.html is not None:
        options.html.write_text(html_page(results), encoding="utf-8")
        console.print(f"page: {options.html}", markup=False, highlight=False, soft_wrap=True)
    if options.as_json:
        typer.echo(_json(results))
    return _INTERRUPTED if interrupted else int(outcome_of(results))


def earlier(path: Path, seed: int) -> dict[str, CellResult]:
    """The cells that were made before with this seed, by key; empty cells are tried again.

    Raises:
        Unreadable: names the line.
    """
    found: dict[str, CellResult] = {}
    if not path.exists():
        return found
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            result = msgspec.json.decode(line, type=CellResult)
        except msgspec.DecodeError as error:
            raise Unreadable(f"{path} line {number}: expected the result of a cell: {error}; remove it") from error
        if result.score is not None and result.seed == seed:
            found[result.key] = result
    return found


def show(console: Console, results: Sequence[CellResult]) -> None:
    """The table, the sums, and the reasons of what is not right."""
    by_key = {result.key: result for result in results}
    table = Table(title="fault x phase", title_justify="left", pad_edge=False, box=box.SIMPLE_HEAD)
    table.add_column("fault", no_wrap=True)
    for phase in Phase:
        table.add_column(phase.value)
    for row in dict.fromkeys(result.row for result in results if result.why != NOT_ASKED_FOR):
        cells = [by_key[f"{row}:{phase}"] for phase in Phase]
        table.add_row(row, *(f"[{_STYLE[cell.state]}]{cell.short()}[/]" for cell in cells))
    console.print(table)
    console.print("+ right, X wrong, ? unknown, o not run, . not applicable; seconds from the strike to its detection")
    undone = [result for result in results if result.state is State.NOT_RUN and result.why != NOT_ASKED_FOR]
    for why in dict.fromkeys(f"{result.row}: {result.why}" for result in undone):
        console.print(f"not run: {why}", markup=False, highlight=False, style="dim", soft_wrap=True)
    for result in results:
        if result.score is not None and result.state is not State.RIGHT:
            _explain(console, result)
    for line in said(sums_of(results)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _make(console: Console, options: MatrixOptions, cells: Sequence[Cell], found: dict[str, CellResult]) -> None:
    began_s = time.monotonic()
    with console.status("starting") as status:
        name, number = "", 0

        def tell(run: Path, spent_s: float) -> None:
            status.update(f"{number} of {len(cells)}: {name}, {run.parent.name} for {spent_s:.0f} s")

        # Runs of a resumed matrix lie beside those of the earlier part.
        place = options.folder / f"runs-{os.getpid()}"
        runs = MatrixRuns(Runner(place, tell), place, options.seed, options.command)
        for number, cell in enumerate(cells, start=1):  # noqa: B007 - the status tells it
            name = cell.key
            result = runs.make(cell, _replay(cell, options))
            found[cell.key] = result
            if result.score is not None:
                _keep(options.folder / RESULTS, result)
                style = _STYLE[result.state]
                console.print(f"[{style}]{result.short()}[/] {cell.key} ({result.took_s:.1f} s)", highlight=False)
                if not options.keep and result.state is State.RIGHT:
                    runs.discard_drilled()
    console.print(f"{len(cells)} cells in {time.monotonic() - began_s:.0f} s", highlight=False)


def _keep(path: Path, result: CellResult) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as out:
        out.write(msgspec.json.encode(result) + b"\n")


def _explain(console: Console, result: CellResult) -> None:
    if result.score is None:
        return
    for reason in result.score.reasons:
        console.print(f"{result.key}: {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"replay: {result.replay}", markup=False, highlight=False, soft_wrap=True)


def _replay(cell: Cell, options: MatrixOptions) -> str:
    words = ["closeranks", "drill", "--matrix", "--cells", cell.key, "--seed", str(options.seed)]
    return shlex.join([*words, *(("--", *options.command) if options.command else ())])


def _interrupted(cell: Cell) -> CellResult:
    return empty(cell) if isinstance(cell.expected, str) else empty(cell, "not run: interrupted before it")


def _json(results: Sequence[CellResult]) -> str:
    sums = sums_of(results)
    rates = {"precision": sums.precision, "recall": sums.recall, "coverage": sums.coverage}
    whole = {
        "verdict": outcome_of(results).name.lower(),
        "sums": msgspec.structs.asdict(sums) | rates,
        "cells": [msgspec.to_builtins(result) for result in results],
    }
    return msgspec.json.encode(whole).decode()
