"""``closeranks drill-nodes``: break whole nodes of a job on purpose, several nodes on this machine."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from closeranks.cli.drill import conclude, leave_on_signals, new_folder, refuse, say, show, tidy
from closeranks.drill.nodes.campaign import Nodes, Results, ResultsProblem, Round, carry_out_all, impossible
from closeranks.drill.nodes.faults import NodeKind
from closeranks.drill.nodes.namespaces import why_not
from closeranks.drill.nodes.runs import NodesSpec
from closeranks.drill.nodes.verdict import completed
from closeranks.drill.verdict import Outcome, worst


class Authority(StrEnum):
    """What elects the coordinator of the drilled runs."""

    SQLITE = "sqlite"
    ETCD = "etcd"
    STORE = "store"
    NONE = "none"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("drill-nodes")(drill_nodes)


def drill_nodes(  # noqa: PLR0913, PLR0917 - each is an option of the command line
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="A script and its arguments.")],
    rounds: Annotated[int, typer.Option(min=1, help="So many runs, each with faults of its own.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the first run; the same seed draws the same faults.")] = 0,
    nnodes: Annotated[int, typer.Option("--nnodes", min=2, help="Nodes with seats.")] = 3,
    spare_nodes: Annotated[int, typer.Option(min=0, help="Nodes that wait for a lost one.")] = 1,
    seats: Annotated[int, typer.Option("--nproc-per-node", min=1, help="Seats of a node.")] = 1,
    authority: Annotated[
        Authority | None,
        typer.Option(
            help="What elects the coordinator; etcd and store are struck too. Default sqlite, with namespaces etcd."
        ),
    ] = None,
    namespaces: Annotated[
        bool, typer.Option("--namespaces", help="Nodes are network namespaces, and links are cut, too. Needs root.")
    ] = False,
    kind: Annotated[
        list[NodeKind] | None, typer.Option("--kind", help="Draw only faults of this kind; may be given several times.")
    ] = None,
    save_every: Annotated[
        str, typer.Option(help="Save, as run does it; then all nodes lose power, too, and the job is started anew.")
    ] = "",
    keep: Annotated[
        Path | None, typer.Option(help="A new folder for all runs; else those are kept that do not hold, or stop.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Keep each round's result in this file, and leave out those that it holds.")
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds for a run.")] = 180.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Kill, freeze and cut off whole nodes at random; see that no update is applied twice and the result is the same.

    A run that stops before its time with a reason on every node has held, too; it is told, counted and kept. Of two
    faults one may never strike, since the run is over or its node does not live: that is told, and the round is held
    against the one that did.

    Exit status: 0 held, 1 broken, 3 unknown (no fault of a round struck, or there is nothing to compare with).
    """
    leave_on_signals()
    if namespaces and (problem := why_not()):
        refuse(f"--namespaces: {problem}; leave it out for nodes on the loopback address")
    # A file would be reached through every cut.
    authority = authority or (Authority.ETCD if namespaces else Authority.SQLITE)
    if authority is Authority.ETCD and shutil.which("etcd") is None:
        refuse("--authority etcd: the etcd server is not installed (Debian: etcd-server); or take --authority sqlite")
    spec = NodesSpec(tuple(command), nnodes, spare_nodes, seats, authority, timeout_s=timeout_s, save_every=save_every)
    only = tuple(kind or ())
    if cannot := impossible(spec, namespaces=namespaces, only=only):
        refuse(
            f"--kind {', '.join(cannot)}: not possible here; links are cut with --namespaces, the authority is "
            "silenced if it is etcd or store, and a blackout needs --save-every"
        )
    sizes = ("--nnodes", str(nnodes), "--spare-nodes", str(spare_nodes), "--nproc-per-node", str(seats))
    where = ("--authority", authority, "--timeout", f"{timeout_s:g}", *(("--namespaces",) if namespaces else ()))
    what = (*(("--save-every", save_every) if save_every else ()), *(w for one in kind or () for w in ("--kind", one)))
    replay = ("closeranks", "drill-nodes", "--rounds", "1", *sizes, *where, *what, "--", *command)
    try:
        results = Results(resume, replay)
    except ResultsProblem as problem:
        refuse(str(problem))
    seeds = range(seed, seed + rounds)
    console, folder = Console(stderr=as_json), new_folder(keep)
    nodes = Nodes(spec, folder, namespaces=namespaces, only=only)
    whole = False
    try:
        with console.status("a run that is left alone"):
            if not completed(nodes.undisturbed()):
                ends = "\n".join(f"{run.node}: {run.output}" for run in nodes.undisturbed().runs)
                typer.echo(f"{ends}\nthe run that was left alone did not complete: nothing to drill", err=True)
                raise typer.Exit(int(Outcome.UNKNOWN))
        with console.status(f"{rounds} rounds"):
            carry_out_all(nodes, seeds, replay, results, lambda one: _show(console, one), keep=keep is not None)
        whole = True
    finally:  # an interrupted night is summed up, too
        found = results.all_of(seeds)
        conclude(console, found, as_json=as_json, further=_counts(found))
        if found:
            say(console, _summary(found))
        held = whole and not any(one.stops or one.outcome is not Outcome.HELD for one in found)
        tidy(console, folder, f"{folder}/ROUND/n0.1/run", asked=keep is not None, held=held)
    raise typer.Exit(int(worst([result.outcome for result in found])))


def _show(console: Console, result: Round) -> None:
    show(console, result)
    for stop in result.stops:
        say(console, f"seed {result.seed} stopped: {stop}")
    for fault in result.never_struck:
        say(console, f"seed {result.seed} never struck: {fault}")


def _counts(results: list[Round]) -> dict[str, int]:
    """How the rounds ended; those that are in neither did not end, or without a word."""
    return {
        "completed": sum(result.completed for result in results),
        "stopped": sum(bool(result.stops) and not result.completed for result in results),
        "struck_by_fewer": sum(bool(result.never_struck) for result in results),
    }


def _summary(results: list[Round]) -> str:
    counts = _counts(results)
    seeds = ", ".join(str(result.seed) for result in results if result.stops and not result.completed)
    stopped = f"{counts['stopped']} stopped with a reason{f': seeds {seeds}' if seeds else ''}"
    return f"{counts['completed']} completed, {stopped}; in {counts['struck_by_fewer']} a fault never struck"
