"""Ends of workers: seen by their pidfd, brought about when the controller asks, and reported exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable

from closeranks.decide.protocol import Hint, Isolate, ProcEnded
from closeranks.events import Account, ProcessExited
from closeranks.run.context import Context
from closeranks.run.last_words import hint_of
from closeranks.run.orphans import Orphans
from closeranks.run.processes import Ended, reap
from closeranks.run.stacks import capture
from closeranks.run.worker import Worker

UNKILLABLE_S = 5.0  # in uninterruptible sleep SIGKILL waits for the device, perhaps for ever
_LAST_WORDS_S = 3.0  # from the report of an exception to the exit: cleaning up must not delay the recovery


async def _unexplained(_: Worker) -> None:
    """Nobody looks for causes."""


class Exits:
    """Watches for ends and makes them."""

    def __init__(self, context: Context, orphans: Orphans) -> None:
        self._context = context
        self._orphans = orphans
        self._isolating: set[int] = set()
        self._bereaved: list[int] = []  # pids of dead workers whose children are still to be looked for
        self.before_release: Callable[[Worker], None] = lambda _: None  # a last look at the pages of a dead worker
        self.heard_of: Callable[[int], Hint | None] = lambda _: None  # what the kernel said of a process
        self.explain: Callable[[Worker], Awaitable[None]] = _unexplained

    def watch(self, worker: Worker) -> None:
        """Be told by the kernel when the worker ends."""
        asyncio.get_running_loop().add_reader(worker.started.pidfd, self._ended, worker)

    def isolate(self, decision: Isolate) -> None:
        """Make sure that the process never acts again, and tell the controller when that is certain."""
        worker = self._context.workers.get(decision.proc)
        if worker is None:
            self._context.unwanted.add(decision.proc)  # it is still being started: who starts it will see to it
        elif worker.alive and worker.proc not in self._isolating:
            self._isolating.add(worker.proc)
            worker.asked = True
            self._context.spawn(self._isolate(worker, capture_stack=decision.capture_stack))

    def dismiss(self, worker: Worker) -> None:
        """End a worker that nobody needs any more, without a look at its stacks."""
        worker.asked = True
        worker.signal(signal.SIGKILL)

    def broken(self, worker: Worker, reason: str) -> None:
        """A control connection cannot be used any further: the worker is treated as failed."""
        self._context.say(f"closeranks: {worker.name}: control connection broken ({reason}); it is ended")
        self.isolate(Isolate(proc=worker.proc, reason=reason, capture_stack=False))

    def failed(self, worker: Worker) -> None:
        """The worker reported the exception that ends it; see that it does end."""
        self._context.spawn(self._hurry(worker))

    async def _hurry(self, worker: Worker) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.gone.wait(), _LAST_WORDS_S)
        if worker.alive:
            self.isolate(Isolate(proc=worker.proc, reason="it failed and does not end", capture_stack=True))

    async def _isolate(self, worker: Worker, *, capture_stack: bool) -> None:
        try:
            self._orphans.note([worker.started.pid])
            if capture_stack:
                self._context.note(await capture(worker, self._context.folder, self._context.options.kind))
        finally:
            self.kill(worker)  # whatever became of the look at it
        try:
            await asyncio.wait_for(worker.gone.wait(), UNKILLABLE_S)
        except TimeoutError:
            self._fence(worker)

    def kill(self, worker: Worker) -> None:
        """SIGKILL; a stopped process takes it too. A method of its own so that a test can make it fail."""
        worker.signal(signal.SIGKILL)

    def _fence(self, worker: Worker) -> None:
        """It does not die: from now on nothing that it says or writes counts, and its seat gets a copy of its page."""
        worker.fenced = True
        worker.link.close()
        worker.gone.set()
        self._context.say(f"closeranks: {worker.name} (pid {worker.started.pid}) cannot be killed; it is fenced")
        self._context.feed(self._fact(worker, unkillable=True))

    def _ended(self, worker: Worker) -> None:
        ended = reap(worker.started.pidfd)
        if ended is None:
            return
        asyncio.get_running_loop().remove_reader(worker.started.pidfd)
        worker.link.drain()
        worker.ended = ended
        self.before_release(worker)
        self.report_account(worker)
        self._context.note(
            ProcessExited(proc=worker.proc, seat=worker.seat, code=ended.code, signal=ended.signal, asked=worker.asked)
        )
        worker.gone.set()
        self._bereaved.append(worker.started.pid)
        if not worker.fenced:
            self._report(worker, ended)
        worker.release()

    def _report(self, worker: Worker, ended: Ended) -> None:
        hint = self._hint(worker, ended)  # now, while its pipes are open
        if ended.signal == signal.SIGABRT and not worker.asked:
            self._context.spawn(self._report_explained(worker, hint))
        else:
            self._context.feed(self._fact(worker, hint=hint))

    def _hint(self, worker: Worker, ended: Ended) -> Hint | None:
        if worker.asked:
            return None
        worker.hear_out()
        # The kernel knows better than the process, and that it was killed for want of memory the process never says.
        own = hint_of(worker.stderr.tail, ended, worker.crash)
        return self.heard_of(worker.started.pid) or own

    async def _report_explained(self, worker: Worker, hint: Hint | None) -> None:
        """Who aborts may be the victim of another: then the controller hears of that one first."""
        await self.explain(worker)
        self._context.feed(self._fact(worker, hint=hint))

    def sweep(self) -> None:
        """End what dead workers left behind; called now and then, for the recovery itself is more urgent.

        What no worker is known to own can only be told while no worker is being forked: then a later look will.
        """
        context = self._context
        while self._bereaved:
            self._orphans.end(self._bereaved.pop())
        if not context.starter.forking:
            self._orphans.sweep(context.known_pids(), {worker.started.pid for worker in context.living()})

    def report_account(self, worker: Worker) -> None:
        """Write where the seconds of the process went up to now."""
        now_s = time.monotonic()
        seconds = worker.account(now_s, library=self._context.library)
        self._context.note(Account(proc=worker.proc, at_mono_s=now_s, seconds=seconds))

    @staticmethod
    def _fact(worker: Worker, *, unkillable: bool = False, hint: Hint | None = None) -> ProcEnded:
        ended = worker.ended
        return ProcEnded(
            proc=worker.proc,
            code=None if ended is None else ended.code,
            signal=None if ended is None else ended.signal,
            crash=worker.crash,
            left_at_step=worker.left_at_step,
            unkillable=unkillable,
            hint=hint,
        )
