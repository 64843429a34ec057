"""``closeranks simulate --twin``: a real drilled run and its virtual twin, side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from closeranks.cli.simulate import refuse
from closeranks.cli.text_page import FILE_WIDTH
from closeranks.events import Record
from closeranks.journal import JOURNAL_NAME, read
from closeranks.simulate.run import recorded
from closeranks.simulate.twin import beside, timing_seen, twin_of
from closeranks.version import version


def play_twin(run: Path, learned_from: Path, journal: Path | None, *, as_json: bool) -> None:
    """Play the faults of ``run`` again with the times seen in ``learned_from``; show what both lost."""
    real = _records(run)
    timing = timing_seen(_records(learned_from))
    twin = twin_of(real, timing)
    lines: list[bytes] = []
    outcome = recorded(twin.setup, twin.strikes, lines.append, name="twin", version=version())
    virtual = [msgspec.json.decode(line, type=Record) for line in lines]
    if journal is not None:
        journal.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (journal / JOURNAL_NAME).open("xb") as file:
            file.writelines(lines)
    rows = beside(real, virtual)
    if as_json:
        told = {"timing": timing, "outcome": outcome, "beside": rows}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
        return
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    table = Table(title=f"{run} and its twin ({outcome.outcome})", title_justify="left")
    for name in ("", "real", "virtual", "off by"):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        table.add_row(row.name, f"{row.real:.4g}", f"{row.virtual:.4g}", f"{row.off:.1%}")
    console.print(table)
    seen = ", ".join(
        f"{name.removesuffix('_s')} {value:.3f} s" for name, value in msgspec.structs.asdict(timing).items() if value
    )
    console.print(f"[dim]times as seen in {learned_from}: {seen}[/]", highlight=False)


def _records(folder: Path) -> tuple[Record, ...]:
    path = folder / JOURNAL_NAME
    if not path.is_file():
        refuse(
            f"{folder}: no {JOURNAL_NAME} in it; give the folder of a run, such as DIR/02-drilled/run of a kept drill"
        )
    return read(path).records
