"""The end of a process that has Checkpointers: what was not closed is finished, and a lost save is not passed over."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
import weakref
from typing import Protocol

from closeranks.checkpoint.problems import CheckpointProblem


class Unclosed(Protocol):
    """What has to be finished."""

    def finish_alone(self) -> str:
        """Finish without other processes; what went wrong, in words. Nothing to do when it is closed."""


class _AtExit:
    def __init__(self) -> None:
        self._open: weakref.WeakSet[Unclosed] = weakref.WeakSet()
        self._pid = 0

    def watch(self, unclosed: Unclosed) -> None:
        if not self._pid:
            atexit.register(self.finish)
        self._pid = os.getpid()
        self._open.add(unclosed)

    def finish(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork: its parent does it
        problems = []
        for unclosed in list(self._open):
            with contextlib.suppress(CheckpointProblem, OSError):
                problems.append(unclosed.finish_alone())
        words = "; ".join(filter(None, problems))
        if words:
            sys.stderr.write(f"closeranks: {time.strftime('%H:%M:%S')} {words}\n")
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # the only way to an exit code from here


_at_exit = _AtExit()


def watch(unclosed: Unclosed) -> None:
    """Finish it when the process ends, unless it is gone by then; a problem makes the exit code 1."""
    _at_exit.watch(unclosed)
