"""Train a real model twice, break it the second time, and see that it ends as if nothing had happened.

The undisturbed run comes first. Then one rank is killed, one frozen, one crashes in backward, two die at once, and
one dies in the recovery of another (plans/demo.toml). Exit status: 0 if the two runs end bit for bit equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from closeranks.drill.campaign import Result, carry_out, planned
from closeranks.drill.plan import RunSpec, parse
from closeranks.drill.runner import Runner
from closeranks.drill.verdict import Evidence, Outcome

ROOT = Path(__file__).resolve().parent.parent
PLAN = "examples/plans/demo.toml"


class Narrated:
    """Runs that say what is about to happen."""

    def __init__(self, runner: Runner, console: Console) -> None:
        self._runner = runner
        self._console = console

    def undisturbed(self, run: RunSpec) -> Evidence:
        """The run without faults."""
        self._console.rule(f"1 of 2: undisturbed, {run.seats} ranks")
        return self._runner.undisturbed(run)

    def drilled(self, run: RunSpec, faults: tuple) -> Evidence:
        """The same run, broken."""
        self._console.rule(f"2 of 2: the same run with {run.spares} spare, and {len(faults)} losses:")
        for fault in faults:
            self._console.print(f"  {fault}", highlight=False)
        return self._runner.drilled(run, faults)


def main() -> int:
    """Make both runs, print report and verdict."""
    os.chdir(ROOT)
    console = Console()
    began_s = time.monotonic()
    folder = ROOT / "runs" / time.strftime("demo-%Y%m%dT%H%M%S", time.gmtime())
    drawn = planned(parse((ROOT / PLAN).read_text(encoding="utf-8"), PLAN), PLAN, range(1))[0]
    result = carry_out(Narrated(Runner(folder, visible=True), console), drawn)
    console.rule("report of the broken run")
    run_folder = folder / "02-drilled" / "run"
    subprocess.run([sys.executable, "-m", "closeranks", "report", str(run_folder)], check=False)
    tell(console, result)
    console.print(f"{time.monotonic() - began_s:.0f} s in all; everything is in {folder.relative_to(ROOT)}")
    return int(result.outcome)


def tell(console: Console, result: Result) -> None:
    """The verdict in a sentence, the reasons below it."""
    if result.outcome is Outcome.HELD:
        losses = len(result.faults)
        console.print(
            f"[bold green]HELD[/]: after {losses} losses the final weights, the state of every seat and the losses "
            "of every step equal, bit for bit, those of the undisturbed run"
        )
    else:
        console.print(f"[bold red]{result.outcome.name}[/]: replay with {result.replay}")
        for reason in result.reasons:
            console.print(f"  {reason}", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
