"""One drill after the other: draw, run, judge."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Protocol

import msgspec

from closeranks.drill.fault import Fault
from closeranks.drill.plan import Plan, RunSpec, random_plan, resolve
from closeranks.drill.verdict import Evidence, Outcome, Verdict, judge
from closeranks.events import IncidentClosed, StepClosed


class Runs(Protocol):
    """What a drill needs of a runner."""

    def undisturbed(self, run: RunSpec) -> Evidence:
        """The run without faults."""

    def drilled(self, run: RunSpec, faults: tuple[Fault, ...]) -> Evidence:
        """One run with these faults."""

    def discard_drilled(self) -> None:
        """Remove what the last run with faults left on the disk."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One drill and what it proved."""

    seed: int
    faults: tuple[str, ...]
    outcome: Outcome
    reasons: tuple[str, ...]
    recovery_s: tuple[float, ...]  # of each incident, to its first new step
    replay: str  # a command that makes this drill again


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, the seed that determines its faults, and the command line that leads back here."""

    plan: Plan
    seed: int
    replay: tuple[str, ...]


def planned(plan: Plan, path: str, seeds: range) -> list[Drawn]:
    """The drills of one plan file, one for each seed."""
    return [Drawn(plan=plan, seed=seed, replay=("closeranks", "drill", path, "--seed", str(seed))) for seed in seeds]


def drawn_at_random(run: RunSpec, steps: int, seeds: range) -> list[Drawn]:
    """Random drills of a command that makes ``steps`` steps, one for each seed."""
    launcher = ("closeranks", "drill", "--random", "1", "--seed")
    sizes: tuple[str, ...] = (
        "--nproc-per-node",
        str(run.seats),
        "--spares",
        str(run.spares),
        "--timeout",
        f"{run.timeout_s:g}",
    )
    sizes += ("--save-every", run.save_every) if run.save_every else ()
    return [
        Drawn(
            plan=msgspec.structs.replace(random_plan(seed, run.seats, steps, saves=bool(run.save_every)), run=run),
            seed=seed,
            replay=(*launcher, str(seed), *sizes, "--", *run.command),
        )
        for seed in seeds
    ]


def carry_out(runs: Runs, drawn: Drawn) -> Result:
    """Make one drill and judge it."""
    plan, faults = drawn.plan, resolve(drawn.plan, drawn.seed)
    undisturbed = runs.undisturbed(plan.run) if plan.expect.equality == "bitwise" else None
    drilled = runs.drilled(plan.run, faults)
    verdict = judge(plan.expect, faults, undisturbed, drilled)
    closed = [record.event for record in drilled.records if isinstance(record.event, IncidentClosed)]
    return Result(
        seed=drawn.seed,
        faults=tuple(str(fault) for fault in faults),
        outcome=verdict.outcome,
        reasons=_with_output(verdict, drilled),
        recovery_s=tuple(event.first_step_s for event in closed if event.first_step_s is not None),
        replay=shlex.join(drawn.replay),
    )


def carry_out_all(runs: Runs, drills: list[Drawn], on_result: Callable[[Result], None], *, keep: bool) -> list[Result]:
    """Make the drills in turn; ``on_result`` hears of each at once. ``keep``: what held stays on the disk, too."""
    results = []
    for drawn in drills:
        results.append(carry_out(runs, drawn))
        on_result(results[-1])
        if not keep and results[-1].outcome is Outcome.HELD:
            runs.discard_drilled()
    return results


def steps_made(evidence: Evidence) -> int:
    """The number of steps that a run closed."""
    return 1 + max((r.event.step for r in evidence.records if isinstance(r.event, StepClosed)), default=-1)


def _with_output(verdict: Verdict, drilled: Evidence) -> tuple[str, ...]:
    """The reasons, and the last line that the run printed where it did not end as it should."""
    lines = drilled.output.strip().splitlines()
    if verdict.outcome is Outcome.HELD or drilled.exit_code == 0 or not lines:
        return verdict.reasons
    return (*verdict.reasons, f"the run's last line: {lines[-1]}")
