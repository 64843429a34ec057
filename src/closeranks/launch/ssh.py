"""``closeranks launch``: one supervisor per host, started through ssh or any command that reaches a host as ssh does.

Each host runs the command under a tether (``launch/tether.py``): the token travels on its standard input, and a lost
connection ends the supervisor there, as if the host were lost, unless it was detached; so does a launcher that is no
longer heard.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Sequence
from typing import NamedTuple

from closeranks.launch.node_words import Meeting, words_of
from closeranks.launch.outcome import UNREACHED, exit_code_of
from closeranks.launch.tether import BEAT_S, DETACH
from closeranks.run.logs import LineCutter

SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"  # a dead host is noticed in 15 s
_READ_BYTES = 2**16
_POLITE = 2  # so many requests to end are passed on; the next one cuts the ropes


class SshProblem(Exception):
    """The command that reaches hosts cannot be started; what had been started already was ended."""


class Plan(NamedTuple):
    """What is to run where. Node ranks are given in the order of the hosts."""

    hosts: tuple[str, ...]  # as ssh takes them; those beyond the meeting's nodes are spares
    meeting: Meeting
    options: tuple[str, ...]  # of closeranks run, the same everywhere, with the script
    folder: str  # where each supervisor starts
    python: str  # the interpreter there
    ssh: tuple[str, ...]
    detach: bool


def command_of(plan: Plan, node_rank: int) -> list[str]:
    """The local command that runs one node's supervisor. It does not contain the token."""
    module = [plan.python, "-P", "-m"]
    words = [*module, "closeranks.launch.tether", *([DETACH] if plan.detach else [])]
    words += [*module, "closeranks", "run", *words_of(plan.meeting, node_rank, plan.options)]
    there = f"cd {shlex.quote(plan.folder)} && exec {shlex.join(words)}"
    return [*plan.ssh, plan.hosts[node_rank], there]


async def launch(plan: Plan, token: str, show: Callable[[str], None]) -> int:
    """Run the plan to its end; the job's exit code, or 255 where no host said anything of it.

    Ctrl-C and SIGTERM reach every node; the third one cuts all ropes. ``show`` gets lines with their node in front; it
    must neither wait nor raise.

    Raises:
        SshProblem: see there.
    """
    ropes: list[Process] = []
    loop = asyncio.get_running_loop()
    asked: list[signal.Signals] = []
    beats = loop.create_task(_beat(ropes))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _ask, number, asked, ropes)
    try:
        for node_rank in range(len(plan.hosts)):
            rope = await _start(command_of(plan, node_rank))
            ropes.append(rope)
            _send(rope, token)
            _send(rope, "")
            for number in asked:  # while the others were being started
                _send(rope, _word(number))
        codes = await asyncio.gather(*(_follow(plan, rank, rope, show) for rank, rope in enumerate(ropes)))
    finally:
        beats.cancel()
        _cut(ropes)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return exit_code_of(codes)


async def _start(command: list[str]) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
    except OSError as error:
        raise SshProblem(f"{command[0]} cannot be started: {error.strerror}") from error


async def _beat(ropes: list[Process]) -> None:
    """Show every tether that there is somebody here."""
    while True:
        await asyncio.sleep(BEAT_S)
        for rope in ropes:
            _send(rope, "")


def _ask(number: signal.Signals, asked: list[signal.Signals], ropes: list[Process]) -> None:
    """Ask every node to end; whoever asks too often wants to be gone at once."""
    asked.append(number)
    if len(asked) > _POLITE:
        _cut(ropes)
    else:
        for rope in ropes:
            _send(rope, _word(number))


def _word(number: signal.Signals) -> str:
    return number.name.removeprefix("SIG")


def _cut(ropes: list[Process]) -> None:
    for rope in ropes:
        if rope.returncode is None:
            rope.kill()


def _send(rope: Process, line: str) -> None:
    if rope.stdin is not None and not rope.stdin.is_closing():
        rope.stdin.write(line.encode("ascii") + b"\n")


async def _follow(plan: Plan, node_rank: int, rope: Process, show: Callable[[str], None]) -> int:
    name = f"n{node_rank}"
    cutter = LineCutter()
    assert rope.stdout is not None  # it was asked for
    while data := await rope.stdout.read(_READ_BYTES):
        for line in cutter.feed(data):
            show(f"{name}| {line}")
    for line in cutter.flush():
        show(f"{name}| {line}")
    code = await rope.wait()
    if code == UNREACHED or code < 0:
        fate = "goes on there by itself" if plan.detach else "ends there, if it was started"
        show(f"closeranks: {name}: the connection to {plan.hosts[node_rank]} is lost; its supervisor {fate}")
        return UNREACHED
    if code != 0:
        show(f"closeranks: {name}: the supervisor on {plan.hosts[node_rank]} ended with {code}")
    return code


def addresses_of(hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts without the users that ssh logs in as."""
    return tuple(host.rpartition("@")[2] for host in hosts)
