"""``closeranks serve``: the gateway in front of model replicas."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from closeranks.toml_text import TomlProblem

if TYPE_CHECKING:
    from closeranks.serve.settings import Settings

_USAGE, _FAILED, _INTERRUPTED = 2, 1, 130


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("serve")(serve)


def serve(  # noqa: PLR0913, PLR0917 - each is an option of the command line
    file: Annotated[
        Path | None, typer.Argument(metavar="GATEWAY.toml", help="Replicas and what to do for them.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what is wrong or risky in the file, and end.")] = False,
    alerts: Annotated[bool, typer.Option("--alerts", help="Print alert rules for Prometheus, and end.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Start two real engines, ask one, kill it meanwhile.")] = False,
    drill: Annotated[int, typer.Option("--drill", min=0, help="Play so many rounds of streams that break.")] = 0,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Flood a feature store behind the gateway, with and without its breaker.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the first round of --drill; same seed, same round.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="With --check, --drill or --cascade: JSON.")] = False,
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds that running requests get after SIGTERM.")] = 60.0,
    worker: Annotated[int | None, typer.Option(hidden=True)] = None,
    shared: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Answer requests of the OpenAI API from several replicas, of which any may die at any time.

    SIGTERM drains, SIGHUP reads the file again. Exit status: 0; 2 if the file does not describe a gateway; with --demo
    and --drill 1 if an answer was not whole, with --cascade 1 if it was an outage.
    """
    if alerts:
        typer.echo(files("closeranks.serve").joinpath("alerts.yml").read_text(), nl=False)
        return
    with _extras():
        if demo:
            _demo()
        if drill:
            _drill(drill, seed, as_json=as_json)
        if cascade:
            _cascade(seed, as_json=as_json)
    if file is None:
        _refuse("expected GATEWAY.toml or --demo")
    settings = _settings(file)
    if check:
        _check(file, settings, as_json=as_json)
        return
    with _extras():
        import uvloop

        from closeranks.serve.process import Own, run
        from closeranks.serve.processes import Workers, command_of_worker

        if settings.listen.processes > 1 and worker is None:
            workers = Workers(command_of_worker(str(file), drain_s), settings.listen.processes, _say)
            code = uvloop.run(workers.run())
        else:
            own = Own(worker, shared) if worker is not None and shared is not None else None
            code = uvloop.run(run(file, settings, own=own, drain_s=drain_s, say=_say))
    raise typer.Exit(code)


@contextlib.contextmanager
def _extras() -> Iterator[None]:
    """Says which extra holds a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = "serve-redis" if error.name == "redis" else "serve"
        _refuse(f"expected the package {error.name}: pip install 'closeranks[{extra}]'")


def _settings(file: Path) -> Settings:
    from closeranks.serve.settings import parse

    try:
        return parse(file.read_text(), str(file))
    except OSError as error:
        _refuse(f"{file}: {error.strerror}")
    except UnicodeDecodeError as error:
        _refuse(f"{file}: expected UTF-8: {error.reason} at byte {error.start}")
    except TomlProblem as error:
        _refuse(str(error))


def _check(file: Path, settings: Settings, *, as_json: bool) -> None:
    from closeranks.serve.settings import risks

    found = risks(settings)
    if as_json:
        typer.echo(json.dumps({"file": str(file), "replicas": len(settings.replica), "risks": found}))
        return
    typer.echo(f"{file}: {len(settings.replica)} replicas, well-formed")
    for risk in found:
        typer.echo(f"  risk: {risk}")


def _drill(rounds: int, seed: int, *, as_json: bool) -> NoReturn:
    import msgspec
    from rich.console import Console
    from rich.progress import track

    from closeranks.serve.drill.rounds import Result, play_all

    results: list[Result] = []
    progress = iter(track(range(rounds), "rounds", console=Console(stderr=True), transient=True, disable=as_json))

    def told(result: Result) -> None:
        next(progress, None)
        results.append(result)
        if not result.held and not as_json:
            said = result.problem or f"{result.lost} streams lost something, {result.repeated} said something twice"
            _say(f"BROKEN seed {result.plan.seed}: {said}; again: closeranks serve --drill 1 --seed {result.plan.seed}")

    try:
        broken = asyncio.run(play_all(rounds, seed, told))
    except KeyboardInterrupt:
        _say(f"{len(results)} of {rounds} rounds were played")
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        typer.echo(msgspec.json.encode(results).decode())
    else:
        _say(f"{rounds - broken} of {rounds} rounds held: every client read the whole text, once")
    raise typer.Exit(_FAILED if broken else 0)


def _cascade(seed: int, *, as_json: bool) -> NoReturn:
    import msgspec

    from closeranks.serve.drill.cascade import Plan, Played, play

    played: dict[str, Played] = {}
    for name, guarded in (("without its breaker", False), ("with it", True)):
        played[name] = found = asyncio.run(play(Plan(seed=seed), guarded=guarded))
        if as_json:
            continue
        _say(f"{name}:")
        for when, phase in (("usual", found.usual), ("node lost", found.lost), ("healed", found.after)):
            _say(
                f"  {when:>9}: p99 of features {1000 * phase.features_p99_s:4.0f} ms, of answers "
                f"{1000 * phase.p99_s:4.0f} ms; errors {100 * phase.error_rate:4.1f} %, with defaults "
                f"{100 * phase.default_share:4.1f} %"
            )
        _say(f"  what an operator is told of it: {', '.join(found.symptoms) or 'nothing'}")
    held = played["with it"].held
    if as_json:
        typer.echo(msgspec.json.encode(played).decode())
    else:
        _say("held: default features instead of an outage, and full service again" if held else "BROKEN: see above")
    raise typer.Exit(0 if held else _FAILED)


def _demo() -> NoReturn:
    from closeranks.serve.demo.show import DemoError, demo

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        good = asyncio.run(demo(show))
    except DemoError as error:
        _refuse(f"--demo: {error}")
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    raise typer.Exit(0 if good else _FAILED)


def _say(line: str) -> None:
    typer.echo(line)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"closeranks serve: {message}", err=True)
    raise typer.Exit(_USAGE)
