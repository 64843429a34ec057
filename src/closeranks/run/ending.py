"""The end of a run: everyone leaves, the last records are written, and a person is told what happened."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import msgspec

from closeranks.decide.protocol import EndRun
from closeranks.events import ProcessExited, ProcessFailed, RunEnded
from closeranks.run.context import Context
from closeranks.run.folder import read_run_file, write_run_file
from closeranks.run.logs import clean

_CONFIRM_S = 2.0  # for SIGKILL to show
_TAIL_LINES = 20


async def end_workers(context: Context) -> None:
    """End what still lives. Each process gets the whole grace period, unless the run is to end now."""
    ending = context.ending
    grace_s = 0.0 if ending is None or ending.now else context.options.grace_s
    context.ended.clear()
    if grace_s > 0:
        for worker in context.living():
            worker.asked = True
            worker.signal(signal.SIGTERM)
            worker.signal(signal.SIGCONT)  # a stopped process could not even die of the first
        await _all_gone(context, grace_s)
    for worker in context.living():
        worker.asked = True
        worker.signal(signal.SIGKILL)
    await _all_gone(context, _CONFIRM_S)


async def _all_gone(context: Context, within_s: float) -> None:
    """Wait for the ends; a second signal (a new EndRun that says now) cuts it short."""
    living = context.living()
    if not living:
        return
    waits = [asyncio.ensure_future(worker.gone.wait()) for worker in living]
    hurry = asyncio.ensure_future(_hurried(context))
    everyone = asyncio.ensure_future(asyncio.wait(waits))
    await asyncio.wait([everyone, hurry], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for task in (everyone, hurry, *waits):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(everyone, hurry, *waits, return_exceptions=True)


async def _hurried(context: Context) -> None:
    while context.ending is None or not context.ending.now:
        await context.ended.wait()
        context.ended.clear()


def write_outcome(context: Context, ending: EndRun) -> None:
    """The last record, and the outcome in ``run.json``."""
    context.note(RunEnded(outcome=ending.outcome, exit_code=ending.exit_code, reason=ending.reason))
    try:
        file = read_run_file(context.folder)
        changed = msgspec.structs.replace(
            file, outcome=ending.outcome, exit_code=ending.exit_code, reason=ending.reason
        )
        write_run_file(context.folder, changed)
    except (OSError, msgspec.MsgspecError) as error:
        context.say(f"closeranks: run.json was not updated: {error}")


def last_words(context: Context, ending: EndRun) -> tuple[str, ...]:
    """What stands last on the console: the first traceback that mattered, the reason, the folder, the exit code."""
    lines: list[str] = []
    failure = context.first_failure
    if ending.outcome == "failed" and failure is not None:
        lines.append(f"closeranks: first failure: {_what(failure, context)}")
        text = failure.traceback if isinstance(failure, ProcessFailed) else _tail(context, failure.proc)
        lines += [clean(line) for line in text.rstrip().splitlines()]
    lines.append(f"closeranks: run {ending.outcome}: {ending.reason}")
    lines.append(f"closeranks: exit code {ending.exit_code}; all about it: closeranks report {context.folder}")
    return tuple(lines)


def _what(failure: ProcessFailed | ProcessExited, context: Context) -> str:
    worker = context.workers.get(failure.proc)
    name = f"p{failure.proc}" if worker is None else worker.name
    if isinstance(failure, ProcessFailed):
        step = "" if failure.step < 0 else f", step {failure.step}"
        return f"{name}: {failure.error} at {failure.where}{step}"
    if failure.signal is not None:
        return f"{name} was ended by signal {failure.signal} ({signal.strsignal(failure.signal)})"
    return f"{name} exited with code {failure.code}"


def _tail(context: Context, proc: int) -> str:
    """The end of what a process said on stderr, for those that died without a report."""
    worker = context.workers.get(proc)
    said = b"" if worker is None else worker.stderr.tail
    return "\n".join(said.decode(errors="replace").splitlines()[-_TAIL_LINES:])
