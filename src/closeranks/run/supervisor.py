"""The supervisor: owns the workers of this node, asks the controller what to do, and does it.

Started by the guardian as ``python -P -m closeranks.run.supervisor FOLDER LIFELINE_FD GUARDIAN_PID``. It imports
torch and forks the zygote while it has one thread; only then does the event loop (and what it needs) begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from closeranks.decide.protocol import Begun, EndRun, StopAsked
from closeranks.events import RunStarted, SignalReceived
from closeranks.journal import Journal, JournalError
from closeranks.launch.outcome import NODE_ALONE, code_of_own_end
from closeranks.run import worker_main
from closeranks.run.birth import Node
from closeranks.run.births import Births
from closeranks.run.brain import Brain, bounds_of
from closeranks.run.carry import Carry
from closeranks.run.circle import Alone
from closeranks.run.context import Context
from closeranks.run.descendants import kill_descendants
from closeranks.run.doubts import Doubts
from closeranks.run.ears import Ears
from closeranks.run.ending import end_workers, last_words, write_outcome
from closeranks.run.exits import Exits
from closeranks.run.folder import RunFile, read_run_file, write_run_file
from closeranks.run.guardian import OMP, OPENBLAS, USER_SETTINGS
from closeranks.run.hooks import let_hooks_end
from closeranks.run.keeping import keeping_of
from closeranks.run.kernel_log import KernelLog, lines_of
from closeranks.run.linux import allow_open_files, become_subreaper, die_with_parent
from closeranks.run.node_history import NodeHistory, Scribe, file_of
from closeranks.run.options import RunOptions, Start, Target
from closeranks.run.orphans import Orphans
from closeranks.run.preflight import Finding, probe_devices, probe_folder, probe_shared_memory
from closeranks.run.processes import Starter
from closeranks.run.screen import Lines, Screen, display_for
from closeranks.run.telemetry import Telemetry
from closeranks.run.telling import tell
from closeranks.run.watch import Watch
from closeranks.run.zygote import Newborn, fork_zygote, preload

if TYPE_CHECKING:
    from closeranks.cluster.member import Member

_EXIT_GUARDIAN_LOST = 1
EXIT_USAGE = 2  # the run could not begin as it was asked for


class _Zygote(NamedTuple):
    """A zygote, or why there is none."""

    handle: tuple[int, socket.socket] | None
    problem: str


class _Signals:
    """SIGTERM and SIGINT from the first moment on; what comes before the loop is kept for it."""

    def __init__(self, guardian: int) -> None:
        self._guardian = guardian
        self._early: list[int] = []
        self._context: Context | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _frame: self._early.append(number))

    def attach(self, context: Context) -> None:
        """Hand the signals over to the loop."""
        self._context = context
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.take, number)
        for early in self._early:
            loop.call_soon(self.take, early)

    def take(self, number: int) -> None:
        """The first one asks for an orderly end, the second for an end at once.

        The guardian's end is told by a SIGTERM too: that asks for nothing, least of all of other nodes, and the
        lifeline tells the same.
        """
        context = self._context
        if context is None or os.getppid() != self._guardian:  # the kernel names the new parent before it signals
            return
        now = context.stops > 0
        context.stops += 1
        meaning = "end now" if now else "finish the step and leave; once more to end now"
        context.note(SignalReceived(signal=number, meaning=meaning))
        context.feed(StopAsked(signal=number, now=now))
        if not now:
            asyncio.get_running_loop().call_later(context.options.grace_s, self._lose_patience, number)

    def _lose_patience(self, number: int) -> None:
        """The step did not end within the grace period."""
        context = self._context
        if context is not None and context.ending is None:
            context.say(f"closeranks: the step did not end within {context.options.grace_s:g} s (--grace)")
            context.feed(StopAsked(signal=number, now=True))


def main(argv: list[str]) -> int:
    """Supervise one run and end the process with its exit code; returns only in a worker, with that of the script."""
    folder, lifeline, guardian = Path(argv[0]), int(argv[1]), int(argv[2])
    # The guardian's end reaches us through the lifeline; this is for the time before anybody listens to that.
    if not die_with_parent(guardian, signal.SIGTERM):
        return _EXIT_GUARDIAN_LOST
    become_subreaper()
    signals = _Signals(guardian)
    file = read_run_file(folder)
    zygote = _make_zygote(file.options)
    if isinstance(zygote, Newborn):
        return worker_main.run(*zygote)
    code = code_of_own_end(file.options, 1)
    try:
        code = asyncio.run(_supervise(folder, file, zygote, (signals, lifeline)))
    except JournalError as error:
        tell(f"closeranks: {error}; the run did not begin", sys.stderr)
        code = code_of_own_end(file.options, EXIT_USAGE)
    except Exception:
        traceback.print_exc()
    finally:
        left = kill_descendants()
        if left:
            tell(f"closeranks: processes {left} do not react to SIGKILL; they hold no part of the run", sys.stderr)
        with contextlib.suppress(OSError, ValueError):  # nobody may be reading any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # taking torch apart would take a second, for nobody


def _make_zygote(options: RunOptions) -> _Zygote | Newborn:
    if options.start is Start.SPAWN or options.kind is Target.COMMAND:
        return _Zygote(None, "")
    problem = preload()
    if problem:
        return _Zygote(None, problem)
    forked = fork_zygote()
    return forked if isinstance(forked, Newborn) else _Zygote(forked, "")


async def _supervise(folder: Path, file: RunFile, zygote: _Zygote, watched: tuple[_Signals, int]) -> int:
    signals, lifeline = watched
    options = file.options
    with (
        contextlib.closing(Screen(display_for(options.view, sys.stdout, options.seats, options.spares))) as screen,
        Journal.create(folder / "journal.jsonl", file.run, options.node or platform.node()) as journal,
    ):
        context = Context(
            run=file.run,
            folder=folder,
            options=options,
            environment=_user_environment(),
            journal=journal,
            controller=Brain(options),
            starter=Starter(zygote.handle),
            screen=screen,
            open_files=allow_open_files(),
        )
        if zygote.problem:
            context.say(f"closeranks: workers are spawned, not forked: {zygote.problem}")
        signals.attach(context)
        _watch_guardian(lifeline, context)
        try:
            ending = await _live(context, file)
            if not ending.now:
                await let_hooks_end(context.hooks)
        finally:
            context.starter.close()
        write_outcome(context, ending)
    _write_last_words(last_words(context, ending))
    return ending.exit_code


async def _live(context: Context, file: RunFile) -> EndRun:
    """From Begun to the end of the last worker."""
    orphans = Orphans()
    exits = Exits(context, orphans)
    member = _member_of(context)
    keeping = keeping_of(context, Alone(context.fail) if member is None else member.circle)
    ears = Ears(context, exits, keeping, _probe(context))
    births = Births(context, ears, exits)
    if member is not None:
        ears.on_joined, member.saved_step = member.joined, lambda: keeping.saved_step
        member.refusal = lambda: keeping.refusal
        member.circle.on_step = keeping.closed_everywhere
    watch = Watch(context, exits, orphans, None if member else Doubts(context, bounds_of(context.options)))
    exits.before_release, exits.explain = watch.part, watch.explain
    keeping.attach(watch)
    carry = Carry(context, births, exits, watch, keeping)
    scribe = Scribe(NodeHistory(file_of(context.options, os.environ)), context.run, context.say)
    carry.on_note = scribe.note
    began_s = time.monotonic()
    context.carry_out = carry.out
    _write_start(context, file)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, what: _defect(context, what))
    problem = await keeping.open()
    context.spawn(watch.run())
    telemetry = Telemetry(context)
    if member is not None:
        telemetry.on_drain = member.unwell
    context.spawn(telemetry.run())
    _follow_kernel(context, telemetry, exits)
    context.spawn(keeping.run())
    if not problem and member is not None:
        problem = await member.join(births, exits, watch, carry)
    if problem:
        context.fail(problem, EXIT_USAGE if member is None or keeping.refused else NODE_ALONE)
    elif member is None:
        context.feed(Begun(saved_step=keeping.saved_step, register=scribe.register()))
    await context.ended.wait()
    await end_workers(context)
    if context.library:
        scribe.worked(socket.gethostname(), (time.monotonic() - began_s) / 3600)
    if member is not None:
        await member.close(context.ending)
    births.close()
    if context.ending is None:
        raise AssertionError("the run ended without a decision to end it")
    ending = await keeping.finish(context.ending)
    if member is not None:
        await member.fall_silent()
    return ending


def _follow_kernel(context: Context, telemetry: Telemetry, exits: Exits) -> None:
    """Hear the kernel, where it was asked for; one that says nothing to us does not keep the run from beginning."""
    where = context.options.kernel_log
    if where is None:
        return
    try:
        log = KernelLog(lines_of(where), telemetry.hear)
    except OSError as error:
        context.say(f"closeranks: --kernel-log {where}: {error.strerror}; the run goes on without it")
        return
    exits.heard_of = log.hint
    context.spawn(log.run(context.ended))


def _member_of(context: Context) -> Member | None:
    """On one node of several the controller is the leader's."""
    options = context.options
    if options.nnodes == 1:
        return None
    from closeranks.cluster.identity import identity_of  # what one node alone does not need
    from closeranks.cluster.member import Member

    identity = identity_of(options, context.environment)
    context.node = Node(identity.node, identity.rank, options.nnodes, identity.host)
    member = Member(context, identity)
    context.controller = member
    return member


def _probe(context: Context) -> tuple[Finding, ...]:
    torch = sys.modules.get("torch")
    # Counted without a context on any device: workers will want to fork.
    devices = 0 if torch is None else torch.cuda.device_count()
    return (*probe_shared_memory(), *probe_folder(context.folder), *probe_devices(context.options.slots, devices))


def _write_start(context: Context, file: RunFile) -> None:
    versions = _versions()
    try:
        write_run_file(context.folder, msgspec.structs.replace(file, versions=versions))
    except OSError as error:
        context.say(f"closeranks: run.json was not updated: {error}")
    options = context.options
    context.note(
        RunStarted(command=file.command, seats=options.seats, spares=options.spares, pid=os.getpid(), versions=versions)
    )


def _versions() -> dict[str, str]:
    torch = sys.modules.get("torch")
    return {"python": platform.python_version(), "torch": "none" if torch is None else str(torch.__version__)}


def _user_environment() -> dict[str, str]:
    """The environment as the user had it: the guardian changed two variables for the zygote's sake."""
    environment = dict(os.environ)
    for name in (OPENBLAS, OMP):
        environment.pop(name, None)
        kept = environment.pop(f"{USER_SETTINGS}{name}", None)
        if kept is not None:
            environment[name] = kept
    return environment


def _watch_guardian(lifeline: int, context: Context) -> None:
    loop = asyncio.get_running_loop()

    def lost() -> None:
        loop.remove_reader(lifeline)
        context.say("closeranks: the guardian is gone; the run is ended")
        context.carry_out(EndRun(outcome="failed", exit_code=1, reason="the guardian process was killed", now=True))

    loop.add_reader(lifeline, lost)


def _defect(context: Context, what: dict[str, object]) -> None:
    """A defect of ours in a callback of the loop."""
    error = what.get("exception")
    context.defect(error if isinstance(error, BaseException) else RuntimeError(str(what.get("message"))))


def _write_last_words(lines: tuple[str, ...]) -> None:
    """They come last, and whole where there is a reader; one that does not read must not keep us."""
    last = Screen(Lines(sys.stdout))
    for line in lines:
        last.say(line)
    last.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
