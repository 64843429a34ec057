"""Several gateway processes behind one port: started, watched and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

from closeranks.serve import shared

Say = Callable[[str], None]

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_STEADY_S: Final = 60.0  # a process that lasted for so long is started again at once


class Workers:
    """Keeps ``count`` processes of ``command`` alive; each is told its number and where they share what they know."""

    def __init__(self, command: list[str], count: int, say: Say) -> None:
        self._command = command
        self._count = count
        self._say = say
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ending = asyncio.Event()
        self._page = shared.create()

    async def run(self) -> int:
        """Return when all have ended after SIGTERM or SIGINT: 0, or the worst of their exit codes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        codes = await asyncio.gather(*(self._keep(number) for number in range(self._count)))
        return max(map(abs, codes))

    async def _keep(self, number: int) -> int:
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = time.monotonic()
            more = ("--worker", str(number), "--shared", str(self._page))
            process = await asyncio.create_subprocess_exec(*self._command, *more, pass_fds=(self._page,))
            self._processes[number] = process
            code = await process.wait()
            del self._processes[number]
            if self._ending.is_set():
                return code
            pause_s = _FIRST_PAUSE_S if time.monotonic() - began_s > _STEADY_S else min(2 * pause_s, _LONGEST_PAUSE_S)
            self._say(f"gateway process {number} ended ({code}); started again in {pause_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause_s)
                return code

    def _end(self) -> None:
        self._ending.set()
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def command_of_worker(file: str, drain_s: float) -> list[str]:
    """What starts one process of several; what makes it one is appended."""
    return [sys.executable, "-m", "closeranks", "serve", file, "--drain-s", str(drain_s)]
