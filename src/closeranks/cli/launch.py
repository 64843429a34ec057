"""``closeranks launch``: start a run on several hosts by ssh."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from closeranks.launch import ssh
from closeranks.launch.hostlist import HostlistProblem, expand
from closeranks.launch.node_words import PORT, Meeting, require_free, require_room, token_of
from closeranks.run.options import UsageError
from closeranks.run.screen import Item, Lines, Screen

_USAGE = 2


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("launch")(launch)


def launch(  # noqa: PLR0913, PLR0917 - each is an option of the command line
    options: Annotated[list[str], typer.Argument(metavar="-- [OPTIONS OF RUN] SCRIPT [ARGUMENTS]")],
    hosts: Annotated[str, typer.Option(help="Nodes that hold seats: h1,h2 or gpu[01-16]; node ranks in this order.")],
    spare_hosts: Annotated[str, typer.Option(help="Further hosts, which wait to replace a lost one.")] = "",
    run_id: Annotated[str, typer.Option(help="Name of the run (default: a new one).", show_default=False)] = "",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Where the first host leads, without an authority.")
    ] = PORT,
    ssh_command: Annotated[str, typer.Option("--ssh", help="Gets a host and a command line, as ssh does.")] = ssh.SSH,
    folder: Annotated[
        str, typer.Option("--folder", help="Working directory on the hosts (default: this one).", show_default=False)
    ] = "",
    python: Annotated[
        str, typer.Option(help="Interpreter on the hosts (default: the path of this one).", show_default=False)
    ] = "",
    detach: Annotated[bool, typer.Option("--detach", help="A lost connection leaves the run on.")] = False,
) -> None:
    """Run a script on several hosts: one supervisor on each, started by ssh, under one new token.

    Exit status: that of the job; 255 if every connection was lost; 2 if the command line is wrong.
    """
    try:
        plan = _plan(tuple(options), hosts, spare_hosts, run_id, port)
        token = token_of(options, os.environ)
    except (UsageError, HostlistProblem) as error:
        _refuse(str(error))
    words = tuple(shlex.split(ssh_command))
    if not words:
        _refuse("--ssh: expected a command, got nothing")
    plan = plan._replace(ssh=words, detach=detach)
    plan = plan._replace(folder=folder or plan.folder, python=python or plan.python)
    try:
        raise typer.Exit(_run(plan, token))
    except ssh.SshProblem as problem:
        typer.echo(f"closeranks launch: {problem}", err=True)
        raise typer.Exit(1) from None


def _plan(options: tuple[str, ...], hosts: str, spare_hosts: str, run_id: str, port: int) -> ssh.Plan:
    require_free(options)
    seated = expand(hosts)
    everywhere = seated + (expand(spare_hosts) if spare_hosts else ())
    for host in everywhere:
        if host.startswith("-"):
            raise UsageError(f"host {host!r}: expected a name or an address; ssh would read this as an option")
        if everywhere.count(host) > 1:
            raise UsageError(f"host {host} is there twice; a node has one supervisor (--nproc-per-node for workers)")
    require_room(len(seated), len(everywhere) - len(seated))
    now_utc = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    meeting = Meeting(
        nnodes=len(seated),
        run_id=run_id or f"{now_utc}-{secrets.token_hex(2)}",
        endpoint=f"{ssh.addresses_of(seated)[0]}:{port}",
    )
    return ssh.Plan(
        hosts=everywhere,
        meeting=meeting,
        options=options,
        folder=str(Path.cwd()),
        python=sys.executable,
        ssh=(),
        detach=False,
    )


class _Output:
    """Lines, and whether the last of them were taken. The run does not need anybody to take them."""

    draws = False

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.taken = True

    def show(self, items: list[Item]) -> None:
        """Write them."""
        if items:
            self.taken = False
            self._lines.show(items)
            self.taken = True

    def close(self) -> None:
        """Nothing is held."""


def _run(plan: ssh.Plan, token: str) -> int:
    output = _Output(Lines(sys.stdout))
    screen = Screen(output)
    try:
        return asyncio.run(ssh.launch(plan, token, screen.say))
    finally:
        screen.close()
        if not output.taken:
            # Python would write what is left in its buffer once more, and make of that its own exit code, or wait.
            sys.stdout = io.StringIO()


def _refuse(problem: str) -> NoReturn:
    typer.echo(f"closeranks launch: {problem}", err=True)
    raise typer.Exit(_USAGE)
