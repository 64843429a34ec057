"""``closeranks simulate``: play policies on a virtual cluster under the real controller, before it fails."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from closeranks.plan.cluster import Cluster
    from closeranks.plan.reliability_file import Reliability
    from closeranks.simulate.policy import Policy
    from closeranks.simulate.strikes import Strike

BROKEN = 1
BAD_INPUT = 2
INTERRUPTED = 130
LESSON = "lesson"
_DAY_S = 86_400.0
_DAYS_MOST = 36_525.0  # a century


def simulate(  # noqa: PLR0913, PLR0917 - flags of a command
    cluster: Annotated[Path | None, typer.Argument(exists=True, dir_okay=False, help="a cluster.toml")] = None,
    policy: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="a policy.toml; several are compared")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="runs of each policy, all with the same faults")] = 100,
    days: Annotated[
        float | None, typer.Option(help="virtual days; else the end of the job, the log replayed, or 30")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="same seed, same faults")] = 0,
    processes: Annotated[int, typer.Option(min=0, help="processors to use; 0: all")] = 0,
    reliability: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="from closeranks fit")] = None,
    unit_gpus: Annotated[int, typer.Option(min=1, help="GPUs in one unit of that file")] = 8,
    replay: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="a failure log: its failures instead of drawn ones")
    ] = None,
    system: Annotated[str | None, typer.Option(help="with --replay of a LANL file: one system by its number")] = None,
    example: Annotated[str | None, typer.Option(help=f"{LESSON}, or a published cluster as in plan")] = None,
    journal: Annotated[
        Path | None, typer.Option(help="a new folder for the journal of the first run of the first policy")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="a chart: .png, .svg, or .html for a page")] = None,
    storm: Annotated[int, typer.Option(min=0, help="play so many random episodes; nothing may break")] = 0,
    forever: Annotated[bool, typer.Option("--forever", help="play random episodes until Ctrl-C")] = False,
    twin: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="a real drilled run, to play again")
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="with --twin: the drilled run to learn times from")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print every figure as JSON")] = False,
) -> None:
    """Simulate a cluster in virtual time and compare policies, with intervals over replicas.

    Exit status: 0 done, 1 an invariant broke, 2 bad input, 130 interrupted (what was done by then is shown).
    """
    from closeranks.plan.checks import NotSolvableError, PlanInputError
    from closeranks.toml_text import TomlProblem

    if plot is not None and plot.suffix not in {".png", ".svg", ".html"}:
        refuse(f"--plot {plot}: expected a name that ends in .png, .svg or .html")
    if days is not None and not 0 < days <= _DAYS_MOST:
        refuse(f"--days: expected above 0 and at most {_DAYS_MOST:g}, got {days:g}; leave it out for the whole job")
    try:
        if storm or forever:
            from closeranks.cli.simulate_storm import storms

            storms(seed, 0 if forever else storm, as_json=as_json)
        elif twin is not None:
            from closeranks.cli.simulate_twin import play_twin

            play_twin(twin, calibrate or twin, journal, as_json=as_json)
        elif example == LESSON:
            from closeranks.cli.simulate_lesson import teach

            teach(seed, replicas, as_json=as_json)
        else:
            from closeranks.cli.simulate_policies import Request, compare

            fitted = _reliability(reliability)
            described = _described(cluster, example, fitted, unit_gpus)
            replayed = _replayed(replay, system, described, days)
            days = days or (_days_of(replayed) if replayed and not described.job.work_h else 0.0)
            request = Request(
                cluster=described,
                policies=_policies(policy or [], _counted(described, replayed, days)),
                replicas=replicas,
                days=days,
                seed=seed,
                processes=processes,
                reliability=fitted,
                replayed=replayed,
            )
            compare(request, journal, plot, as_json=as_json)
    except (PlanInputError, NotSolvableError, TomlProblem) as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}")


def refuse(problem: str) -> NoReturn:
    """End with the status of bad input."""
    sys.stderr.write(f"closeranks simulate: {problem}\n")
    raise typer.Exit(BAD_INPUT)


def _reliability(path: Path | None) -> Reliability | None:
    from closeranks.plan.reliability_file import from_toml

    return None if path is None else from_toml(path.read_text(), str(path))


def _described(cluster: Path | None, example: str | None, fitted: Reliability | None, unit_gpus: int) -> Cluster:
    from closeranks.plan.checks import PlanInputError
    from closeranks.plan.cluster import cluster_of
    from closeranks.plan.published import example as published
    from closeranks.plan.reliability_file import measured_of
    from closeranks.toml_text import tables_in

    if cluster is not None:
        text, where = cluster.read_text(), str(cluster)
        raw = tables_in(text, where)
    elif example is not None:
        raw, where, text = dict(published(example).raw), f"--example {example}", ""
    else:
        way_out = f"give a cluster.toml, --example {LESSON} or --example llama3, --storm N, or --twin RUN_DIR"
        raise PlanInputError("closeranks simulate", "something to simulate", "nothing", way_out)
    if fitted is not None:
        raw["measured"], raw["part"] = measured_of(fitted, unit_gpus)
    if "hardware" not in raw:
        raise PlanInputError(where, "hardware.accelerators", "none", "say how many accelerators the job has")
    return cluster_of(raw, where, text)


def _policies(paths: list[Path], cluster: Cluster) -> tuple[Policy, ...]:
    from closeranks.plan.answer import answer
    from closeranks.simulate.policy import Policy, read_policy

    if paths:
        return tuple(read_policy(path.read_text(), str(path)) for path in paths)
    planned = answer(cluster)
    return (
        Policy(name="as planned", spares=planned.spares.spares, save_every_s=max(1.0, planned.save.interval_s.value)),
    )


def _replayed(path: Path | None, system: str | None, cluster: Cluster, days: float | None) -> tuple[Strike, ...]:
    """Return the failures of the log within the horizon: what was asked for, or the whole of the log."""
    if path is None:
        return ()
    from closeranks.cli.fit import read_log
    from closeranks.plan.checks import PlanInputError
    from closeranks.simulate.draw import replay

    trace = read_log(path, system)
    nodes = max(1, -(-cluster.hardware.accelerators // cluster.hardware.per_node))
    horizon_s = days * _DAY_S if days else math.inf
    found = tuple(replay(trace, nodes, horizon_s, cluster.repair.mean_h * 3600))
    if not found:
        raise PlanInputError(str(path), "a failure to replay", "none", "name another log, or leave out --replay")
    return found


def _days_of(replayed: tuple[Strike, ...]) -> float:
    """Return the whole days that hold every failure of a log."""
    return math.floor(replayed[-1].at_s / _DAY_S) + 1.0


def _counted(cluster: Cluster, replayed: tuple[Strike, ...], days: float) -> Cluster:
    """Return the cluster as it is planned for: with the count of a log that is replayed, where there is one."""
    from msgspec.structs import replace

    from closeranks.plan.cluster import Measured

    if not replayed or not days:
        return cluster
    whole = cluster.hardware.accelerators
    return replace(cluster, measured=Measured(failures=len(replayed), unit_h=24 * days, unit_accelerators=whole))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("simulate")(simulate)
