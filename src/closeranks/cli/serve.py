"""``closeranks serve``: the gateway in front of model replicas."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from closeranks.toml_text import TomlProblem

if TYPE_CHECKING:
    from closeranks.serve.settings import Settings

_USAGE = 2


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("serve")(serve)


def serve(
    file: Annotated[Path, typer.Argument(metavar="GATEWAY.toml", help="Replicas and what to do for them.")],
    check: Annotated[bool, typer.Option("--check", help="Read the file, say what is wrong with it, and end.")] = False,
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds that running requests get after SIGTERM.")] = 60.0,
) -> None:
    """Answer requests of the OpenAI API from several replicas, of which any may die at any time.

    Exit status: 0, or 2 if the file does not describe a gateway.
    """
    from closeranks.serve.settings import parse

    try:
        settings = parse(file.read_text(), str(file))
    except OSError as error:
        _refuse(f"{file}: {error.strerror}")
    except TomlProblem as error:
        _refuse(str(error))
    if not check:
        import uvloop

        uvloop.run(_serve(settings, drain_s))


async def _serve(settings: Settings, drain_s: float) -> None:
    from closeranks.serve.gateway import Gateway

    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    gateway = Gateway(settings)
    port = await gateway.start()
    typer.echo(f"listening on http://{settings.listen.host}:{port}, {len(settings.replica)} replicas")
    await asked.wait()
    with contextlib.suppress(asyncio.CancelledError):
        await gateway.drain(drain_s)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"closeranks serve: {message}", err=True)
    raise typer.Exit(_USAGE)
