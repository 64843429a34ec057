"""``closeranks drill``: break a run on purpose and say whether what was expected held."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from closeranks import journal
from closeranks.cli.drill_gateway import GatewayError, Wish, carry_out, told, verdict_of
from closeranks.cli.drill_matrix import MatrixOptions, Unreadable, drill_matrix
from closeranks.drill import campaign
from closeranks.drill.campaign import Result
from closeranks.drill.matrix import UnknownCellError
from closeranks.drill.plan import PlanError, RunSpec, parse
from closeranks.drill.runner import Runner
from closeranks.drill.verdict import Outcome, worst
from closeranks.events import IncidentOpened, StepClosed

_USAGE = 2
_STYLE = {Outcome.HELD: "green", Outcome.BROKEN: "bold red", Outcome.UNKNOWN: "yellow"}


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("drill")(drill)


def drill(  # noqa: PLR0913, PLR0917 - each is an option of the command line
    target: Annotated[
        list[str] | None, typer.Argument(metavar="PLAN.toml | -- COMMAND", help="A plan; or what to drill.")
    ] = None,
    random: Annotated[
        int | None, typer.Option("--random", min=1, help="Make so many random drills of COMMAND.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same drill.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Carry the plan out with so many seeds.")] = 1,
    keep: Annotated[
        Path | None, typer.Option(help="A new folder for all runs; else those that do not hold are kept.")
    ] = None,
    seats: Annotated[int, typer.Option("--nproc-per-node", min=1, help="With --random: seats.")] = 4,
    spares: Annotated[int, typer.Option("--spares", min=0, help="With --random: spares.")] = 1,
    save_every: Annotated[
        str, typer.Option(help="With --random: save, as run does it, and kill all seats in every second drill.")
    ] = "",
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="With --random: seconds for a run.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Every kind of fault in every phase, scored; COMMAND or a small job.")
    ] = False,
    cells: Annotated[
        str, typer.Option(help="With --matrix: all, quick, kill:forward, kill (a row), :saving (a column), ...")
    ] = "all",
    resume: Annotated[
        Path | None, typer.Option(help="With --matrix: the folder of an earlier one; what it has is not made again.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="With --matrix: write the table to this page, too.")] = None,
    gateway: Annotated[
        str, typer.Option(metavar="ADMIN_URL", help="Drill a running gateway instead, through its admin API.")
    ] = "",
    token_file: Annotated[Path | None, typer.Option(help="With --gateway: the file with its token.")] = None,
    dependency: Annotated[
        str, typer.Option(help="With --gateway: name of a dependency or replica in its file, or sessions.")
    ] = "",
    delay: Annotated[str, typer.Option(metavar="TIME", help="With --dependency: it is so much slower.")] = "",
    fail: Annotated[bool, typer.Option("--fail", help="With --dependency: it answers with errors.")] = False,
    kill: Annotated[bool, typer.Option("--kill", help="With --dependency: nobody is there.")] = False,
    tier: Annotated[str, typer.Option(help="With --gateway: serve from this level of the ladder.")] = "",
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="With --gateway: how long.")] = "30s",
) -> None:
    """Strike a run with planned or random faults, compare it with an undisturbed one, exit with the verdict.

    With --gateway: break what a running gateway depends on, for a while, and see that it serves on and recovers.

    Exit status: 0 held, 1 broken, 3 unknown (a fault never struck, or there is nothing to compare with).
    """
    leave_on_signals()
    console = Console(stderr=as_json)
    if gateway:
        wish = Wish(gateway, token_file, dependency, tier, delay, fail, kill, for_)
        raise typer.Exit(_of_gateway(console, wish, as_json=as_json))
    if matrix:
        folder = resume if resume is not None else new_folder(keep)
        asked = resume is not None or keep is not None
        options = MatrixOptions(cells, seed, folder, resume is not None, asked, html, as_json, tuple(target or ()))
        raise typer.Exit(_matrix(console, options))
    target = target or []
    seeds = range(seed, seed + (random or repeat))
    drills = [] if random else _planned_drills(target, seeds)
    folder = new_folder(keep)
    results: list[Result] = []
    try:
        with console.status("starting") as status:
            runner = Runner(folder, lambda run_folder, spent_s: _tell(status, run_folder, spent_s))
            if random:
                run = RunSpec(
                    command=tuple(target), seats=seats, spares=spares, timeout_s=timeout_s, save_every=save_every
                )
                drills = _random_drills(runner, run, seeds)
            results = campaign.carry_out_all(
                runner, drills, lambda result: show(console, result), keep=keep is not None
            )
        conclude(console, results, as_json=as_json)
    finally:  # who interrupts it hears where the runs are
        held = worst([result.outcome for result in results]) is Outcome.HELD
        tidy(console, folder, f"{folder}/NAME/run", asked=keep is not None, held=held)
    raise typer.Exit(int(worst([result.outcome for result in results])))


def _of_gateway(console: Console, wish: Wish, *, as_json: bool) -> int:
    try:
        seen = carry_out(wish, lambda line: say(console, line))
    except (GatewayError, ValueError, OSError) as error:
        refuse(str(error))
    for line in told(seen):
        say(console, line)
    if as_json:
        typer.echo(msgspec.json.encode(seen).decode())
    return verdict_of(seen)


def _matrix(console: Console, options: MatrixOptions) -> int:
    status: int | None = None
    try:
        status = drill_matrix(console, options)
    except (UnknownCellError, Unreadable) as error:
        refuse(str(error))
    finally:
        if not _removed(options.folder, asked=options.keep, held=status == Outcome.HELD):
            again = f"to go on: closeranks drill --matrix --resume {options.folder}"
            say(console, f"runs are kept in {options.folder}; {again}")
    return status


def conclude(
    console: Console, results: Sequence[Result], *, as_json: bool, further: Mapping[str, object] | None = None
) -> None:
    """Say what all drills proved; ``further`` entries for the object of ``--json``."""
    _report(console, results)
    if as_json:
        outcome = worst([result.outcome for result in results])
        summary = {"verdict": outcome.name.lower(), "drills": [_as_json(result) for result in results]}
        typer.echo(msgspec.json.encode(summary | dict(further or {})).decode())


def tidy(console: Console, folder: Path, example: str, *, asked: bool, held: bool) -> None:
    """Remove the runs if all held and nobody asked for them, else say where they are."""
    if not _removed(folder, asked=asked, held=held):
        say(console, f"runs are kept in {folder}; to look at one: closeranks report {example}")


def _removed(folder: Path, *, asked: bool, held: bool) -> bool:
    """Whether no runs are there now. A folder that somebody asked for is left as it is."""
    empty = not folder.is_dir() or not any(folder.iterdir())
    if not asked and (held or empty):
        shutil.rmtree(folder)
        return True
    return empty


def leave_on_signals() -> None:
    """SIGTERM and the end of the terminal leave through ``leave``, but what nohup ignores stays ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def leave(signum: int, _: object) -> NoReturn:
    """Leave through the runner, which ends the run that it started."""
    raise SystemExit(128 + signum)


def new_folder(keep: Path | None) -> Path:
    """Where the runs go."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="closeranks-drill-"))
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        refuse(f"{keep}: expected a new or empty folder; runs are never overwritten")
    return keep


def _planned_drills(target: list[str], seeds: range) -> list[campaign.Drawn]:
    if len(target) != 1:
        refuse(f"expected one PLAN.toml, got {len(target)} words; to drill a command: --random N -- COMMAND")
    path = Path(target[0])
    try:
        plan = parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        refuse(f"{path}: the plan cannot be read: {reason}; give a TOML file, such as those in examples/plans")
    except PlanError as error:
        refuse(str(error))
    return campaign.planned(plan, target[0], seeds)


def _random_drills(runner: Runner, run: RunSpec, seeds: range) -> list[campaign.Drawn]:
    """Draw within the steps that the command makes when it is left alone."""
    undisturbed = runner.undisturbed(run)
    steps = campaign.steps_made(undisturbed)
    if undisturbed.exit_code != 0 or steps == 0:
        typer.echo(undisturbed.output, err=True)
        typer.echo(
            f"the undisturbed run ended with {undisturbed.exit_code} after {steps} steps: nothing to drill. A command "
            "must close steps of closeranks and exit with 0 when left alone",
            err=True,
        )
        raise typer.Exit(int(Outcome.UNKNOWN))
    return campaign.drawn_at_random(run, steps, seeds)


def refuse(problem: str) -> NoReturn:
    """The command line is wrong."""
    typer.echo(f"closeranks drill: {problem}", err=True)
    raise typer.Exit(_USAGE)


def _tell(status: Status, run_folder: Path, spent_s: float) -> None:
    """Show how far the run is."""
    path = run_folder / journal.JOURNAL_NAME
    events = [record.event for record in journal.read(path).records] if path.exists() else []
    step = max((event.step for event in events if isinstance(event, StepClosed)), default=-1)
    incidents = sum(isinstance(event, IncidentOpened) for event in events)
    seen = f"step {step} closed, {incidents} incidents" if step >= 0 else "starting"
    status.update(f"{run_folder.parent.name}: {spent_s:.0f} s, {seen}")


def show(console: Console, result: Result) -> None:
    """Say what one drill proved."""
    style = _STYLE[result.outcome]
    line = f"[{style}]{result.outcome.name.lower()}[/] seed {result.seed}: {escape('; '.join(result.faults))}"
    console.print(f"{line}{_recovered(result)}", highlight=False, soft_wrap=True)


def _recovered(result: Result) -> str:
    """Seconds from the first sign of each incident to its first new step."""
    seconds = ", ".join(f"{recovered_s:.2f} s" for recovered_s in result.recovery_s)
    return f"; recovered in {seconds}" if seconds else ""


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _report(console: Console, results: Sequence[Result]) -> None:
    if len(results) > 1:
        counts = [(outcome, sum(result.outcome is outcome for result in results)) for outcome in Outcome]
        said = ", ".join(f"[{_STYLE[outcome]}]{count} {outcome.name.lower()}[/]" for outcome, count in counts if count)
        console.print(f"{len(results)} drills: {said}", highlight=False)
    for result in results:
        if result.outcome is not Outcome.HELD:
            for reason in result.reasons:
                say(console, f"seed {result.seed}: {reason}")
            say(console, f"replay: {result.replay}")


def _as_json(result: Result) -> dict[str, object]:
    return msgspec.structs.asdict(result) | {"outcome": result.outcome.name.lower()}
