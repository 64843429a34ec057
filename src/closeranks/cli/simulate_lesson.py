"""``closeranks simulate --example lesson``: what a checkpoint is worth, in the smallest example."""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from closeranks.cli.text_page import FILE_WIDTH
from closeranks.simulate.lesson import EVERY, FAULT_CHANCE, UNITS, lesson


def teach(seed: int, replicas: int, *, as_json: bool) -> None:
    """Play both ways and show them side by side."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replicas", total=2 * replicas)
        found = lesson(seed, replicas, lambda count: progress.advance(task, count))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
        return
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    console.print(
        f"A training of {UNITS} units. In each time unit a fault strikes with probability {FAULT_CHANCE}: it costs the "
        f"unit and takes the training back to the last checkpoint (every {EVERY} units), or to the beginning.",
        highlight=False,
    )
    table = Table()
    for name in ("", "expected time", "simulated (95 %)", "faults", "10 to 90 % of runs"):
        table.add_column(name, justify="left" if not name else "right")
    for row in found.rows:
        took = row.simulated
        table.add_row(
            row.name,
            f"{row.expected_units:.2f}",
            f"{took.mean:.2f} ({took.low:.2f} .. {took.high:.2f})",
            f"{row.faults:.1f}",
            f"{took.p10:.0f} .. {took.p90:.0f}",
        )
    console.print(table)
    first, second = found.rows
    ratio = second.expected_units / first.expected_units
    console.print(f"Without checkpoints the same training takes {ratio:.1f} times as long.", highlight=False)
