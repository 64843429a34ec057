"""The comparison of policies for ``closeranks simulate``: run with a progress bar, shown, and kept where asked."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from closeranks.cli.simulate import INTERRUPTED, refuse
from closeranks.cli.text_page import FILE_WIDTH
from closeranks.journal import JOURNAL_NAME
from closeranks.plan.answer import answer
from closeranks.plan.cluster import Cluster
from closeranks.plan.job_times import best_interval_s, times_of, waste_at
from closeranks.plan.reliability_file import Reliability
from closeranks.simulate.book import Outcome, Part
from closeranks.simulate.chart import PlotError, chart_of, to_png, to_svg
from closeranks.simulate.compare import Comparison, Result, difference_of, result_of
from closeranks.simulate.page import html_page
from closeranks.simulate.policy import Policy
from closeranks.simulate.replicas import Work, run_all
from closeranks.simulate.scenario import DAY_S, HOUR_S, Scenario, scenario_of, setup_of
from closeranks.simulate.strikes import Strike
from closeranks.version import version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from closeranks.simulate.statistics import Estimate

_SHORT_STEPS = 200_000  # a journal tells of every step of runs up to so many


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line."""

    cluster: Cluster
    policies: tuple[Policy, ...]
    replicas: int
    days: float
    seed: int
    processes: int
    reliability: Reliability | None
    replayed: tuple[Strike, ...]


def compare(request: Request, journal: Path | None, plot: Path | None, *, as_json: bool) -> None:
    """Run every policy, show the comparison, write what was asked for."""
    scenario = _scenario(request)
    work = Work(
        scenario=scenario,
        setups=tuple(setup_of(request.cluster, policy, scenario) for policy in request.policies),
        replayed=request.replayed,
    )
    if journal is not None:
        _record(request, work, journal)
    began_s = time.monotonic()
    runs = _run(request, work)
    if not runs:
        refuse("interrupted before the first replica was done; nothing to show")
    found = _comparison(request, scenario, runs, time.monotonic() - began_s)
    if plot is not None:
        _plot(found, plot)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        _show(Console(width=None if sys.stdout.isatty() else FILE_WIDTH), found)
    if len(runs) < request.replicas:
        sys.stderr.write(f"closeranks simulate: interrupted after {len(runs)} of {request.replicas} replicas\n")
        raise typer.Exit(INTERRUPTED)


def _scenario(request: Request) -> Scenario:
    scenario = scenario_of(request.cluster, days=request.days, reliability=request.reliability)
    if not request.replayed:
        return scenario
    # The log stands for the losses of nodes; what it cannot know is still drawn.
    parts = {entry.name for entry in request.cluster.part} | {entry.name for entry in request.cluster.domain}
    left = tuple(source for source in scenario.sources if source.name not in parts)
    mtbf_s = scenario.horizon_s / len(request.replayed)
    return msgspec.structs.replace(scenario, sources=left, mtbf_s=mtbf_s)


def _run(request: Request, work: Work) -> list[tuple[Outcome, ...]]:
    seeds = range(request.seed, request.seed + request.replicas)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replicas", total=request.replicas)
        return run_all(work, seeds, request.processes, lambda count: progress.advance(task, count))


def _comparison(request: Request, scenario: Scenario, runs: Sequence[tuple[Outcome, ...]], took_s: float) -> Comparison:
    by_policy = list(zip(*runs, strict=True))
    results = tuple(
        result_of(policy, outcomes, scenario, _formula(request, policy, scenario))
        for policy, outcomes in zip(request.policies, by_policy, strict=True)
    )
    differences = tuple(
        difference_of((results[0], result), (by_policy[0], outcomes))
        for result, outcomes in zip(results[1:], by_policy[1:], strict=True)
    )
    return Comparison(
        replicas=len(runs),
        asked=request.replicas,
        seed=request.seed,
        days=scenario.horizon_s / DAY_S,
        nodes=scenario.nodes,
        accelerators=scenario.accelerators,
        mtbf_h=scenario.mtbf_s / HOUR_S,
        results=results,
        differences=differences,
        events=sum(outcome.events for outcomes in runs for outcome in outcomes),
        took_s=took_s,
        assumed=_assumed(request),
    )


def _formula(request: Request, policy: Policy, scenario: Scenario) -> float | None:
    """The closed form knows losses that need a save, and nothing else."""
    cluster = request.cluster
    if policy.replicated or policy.tier or not policy.save or cluster.fault or request.replayed:
        return None
    times = times_of(cluster, scenario.mtbf_s)
    interval_s = policy.save_every_s or policy.save_every_steps * cluster.job.step_s
    return 1 - waste_at(cluster, times, scenario.mtbf_s, interval_s or best_interval_s(cluster, times, scenario.mtbf_s))


def _assumed(request: Request) -> tuple[str, ...]:
    notes = []
    if any(policy.limits is None for policy in request.policies):
        notes.append("no budget of restarts ends a run where a policy has no [limits]; closeranks run allows 3")
    if request.cluster.measured is not None:
        notes.append("each replica draws its rate from what your count of failures leaves open")
    if request.replayed:
        notes.append(f"{len(request.replayed)} failures of the log instead of drawn losses of nodes")
    return (*notes, *answer(request.cluster).assumed)


def _record(request: Request, work: Work, folder: Path) -> None:
    """Write the journal of the first replica under the first policy."""
    from closeranks.simulate.draw import draw
    from closeranks.simulate.run import recorded

    if folder.exists() and any(folder.iterdir()):
        refuse(f"--journal {folder}: expected a new or empty folder; journals are never overwritten")
    setup = work.setups[0]
    steps = work.scenario.until or work.scenario.horizon_s / setup.step_s
    if steps <= _SHORT_STEPS:
        setup = msgspec.structs.replace(setup, every_step=True)
    drawn = [*work.replayed, *draw(work.scenario, request.seed, setup.spare_nodes)]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / JOURNAL_NAME).open("xb") as file:
        (folder / JOURNAL_NAME).chmod(0o600)
        recorded(setup, drawn, file.write, name=f"simulated-{request.seed}", version=version())
    sys.stderr.write(f"closeranks simulate: journal written; to look at it: closeranks report {folder}\n")


def _plot(found: Comparison, path: Path) -> None:
    if path.suffix == ".html":
        path.write_text(html_page(found), encoding="utf-8")
        return
    chart = chart_of(found)
    try:
        path.write_bytes(to_svg(chart).encode() if path.suffix == ".svg" else to_png(chart))
    except PlotError as error:
        refuse(f"--plot {path}: {error}")


# --- showing ----------------------------------------------------------------------------------------------------


def _show(console: Console, found: Comparison) -> None:
    console.print(
        f"[bold]{found.accelerators:,} accelerators on {found.nodes:,} nodes[/], MTBF {found.mtbf_h:.3g} h, "
        f"{found.days:g} days, {found.replicas} replicas from seed {found.seed}: {found.events:,} events in "
        f"{found.took_s:.1f} s",
        highlight=False,
    )
    _show_results(console, found.results)
    _show_shares(console, found.results)
    for result in found.results:
        _show_outcome(console, result)
    for difference in found.differences:
        console.print(
            f"[bold]{escape(difference.name)}[/] against {escape(difference.against)}: goodput "
            f"{_interval(difference.goodput, '{:+.3%}')}, saves {_interval(difference.saved_per_day, '{:+,.0f}')} "
            f"dollars a day: {escape(difference.verdict)}",
            highlight=False,
        )
    console.print("[dim]assumed: " + escape("; ".join(found.assumed)) + "[/]", highlight=False)


def _show_results(console: Console, results: Sequence[Result]) -> None:
    table = Table(title="Means with 95 % intervals", title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(escape(result.name), justify="right")
    rows: list[tuple[str, Callable[[Result], str]]] = [
        ("goodput", lambda r: _interval(r.goodput, "{:.2%}")),
        ("goodput in closed form", lambda r: "" if r.formula is None else f"{r.formula:.2%}"),
        ("10 to 90 % of runs", lambda r: f"{r.goodput.p10:.2%} .. {r.goodput.p90:.2%}"),
        ("wasted a day", lambda r: _interval(r.waste_per_day, "${:,.0f}")),
        ("incidents a day", lambda r: _interval(r.incidents_per_day, "{:.2f}")),
        ("hours down a day", lambda r: _interval(r.down_h_per_day, "{:.2f}")),
        ("days until done or cut", lambda r: f"{r.wall_s.mean / DAY_S:.2f}"),
        ("longest training lost", lambda r: f"{r.worst_loss_s / 60:,.1f} min"),
        ("longest way back", lambda r: f"{r.worst_return_s / 60:,.1f} min"),
    ]
    for name, told in rows:
        table.add_row(name, *(told(result) for result in results))
    console.print(table)


def _show_shares(console: Console, results: Sequence[Result]) -> None:
    table = Table(title="Where the time went", title_justify="left")
    table.add_column("part")
    for result in results:
        table.add_column(escape(result.name), justify="right")
    for part in Part:
        shares = [result.shares.get(part, 0.0) for result in results]
        if any(shares):
            table.add_row(part.value, *(f"{share:.3%}" for share in shares))
    console.print(table)


def _show_outcome(console: Console, result: Result) -> None:
    rungs = ", ".join(f"{rung} {count}" for rung, count in result.rungs.items()) or "none"
    console.print(f"{result.name}: {rungs}", highlight=False, markup=False)
    failed = result.outcomes.get("failed", 0)
    if failed:
        console.print(
            f"[bold red]{failed} of {result.replicas} runs failed[/]: {escape(result.reasons[0])}", highlight=False
        )
    if result.broken_promises:
        console.print(
            f"[bold yellow]{result.broken_promises} of {result.replicas} runs broke a promise[/]: {result.promise}",
            highlight=False,
        )


def _interval(found: Estimate, form: str) -> str:
    mean = form.format(found.mean)
    if found.low == found.high or found.high == float("inf"):
        return mean
    return f"{mean} ({form.format(found.low)} .. {form.format(found.high)})"
