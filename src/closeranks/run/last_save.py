"""The end of a loop: ranks leave once its last state is copied, and the run says whether that became durable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from closeranks.decide.protocol import EndRun

EXIT_NOT_SAVED: Final = 74  # EX_IOERR: the work was done, but its end is not durable
_LEAVE_S: Final = 120.0  # for the lead to say that all may leave


class LastSave:
    """Of one node with seats."""

    def __init__(self) -> None:
        self._leave: Callable[[], None] | None = None
        self._asked_s = 0.0
        self._step: int | None = None  # after which everybody leaves

    def let_leave(self, leave: Callable[[], None], step: int) -> None:
        """The loop is over everywhere: ``leave`` is called when its end is copied."""
        self._leave, self._asked_s, self._step = leave, time.monotonic(), step

    def copied(self) -> None:
        """Nothing has to be copied any more."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def look(self, now_s: float) -> str:
        """Called now and then: the lead may be gone, and ranks must not wait for it for ever. The problem, or ""."""
        if self._leave is None or now_s - self._asked_s < _LEAVE_S:
            return ""
        self.copied()
        return f"the node that leads the saves did not say within {_LEAVE_S:g} s that all is copied"

    def judge(self, ending: EndRun, durable_step: int | None, problem: str) -> EndRun:
        """The ending with what became of the last state; ``problem`` is that of the newest save."""
        if self._step is None:
            return ending
        if durable_step is not None and durable_step >= self._step:
            return replace(ending, reason=f"{ending.reason}; step {durable_step} is in the store")
        reason = f"{ending.reason}; its last state, step {self._step}, is NOT durable: {problem or 'unknown'}"
        return replace(ending, exit_code=ending.exit_code or EXIT_NOT_SAVED, reason=reason)
