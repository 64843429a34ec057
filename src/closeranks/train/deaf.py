"""Operations that nothing will ever wake.

gloo loses the error of a send whose connection breaks while its event thread starts to write: the connection is
closed, but the operation goes on waiting for its completion until the timeout of the group, and no call ends it.
Such an operation cannot touch a tensor any more, for its group has no connection left.
"""

from __future__ import annotations

from pathlib import Path

_TASKS = Path("/proc/self/task")
_RUN_LOOP = "pt_gloo_runloop"
_SURE_S = 0.5


class Silence:
    """Watches the operations of a term whose connections have been cut."""

    def __init__(self) -> None:
        self._spent_ns = -1
        self._since_s = 0.0

    def is_final(self, connections: int, now_s: float) -> bool:
        """Whether what still runs is deaf: no connection is left, and gloo's threads have slept for a while.

        A thread that still reduces what it has received is no sleeper, however long it takes.
        """
        spent_ns = _slept_after_ns()
        if connections > 0 or spent_ns < 0 or spent_ns != self._spent_ns:
            self._spent_ns, self._since_s = spent_ns, now_s
            return False
        return now_s - self._since_s >= _SURE_S


def _slept_after_ns() -> int:
    """Processor time of all threads that carry out gloo's operations; -1 if one of them is at work."""
    total_ns = 0
    for task in _TASKS.iterdir():
        try:
            if (task / "comm").read_text().rstrip() != _RUN_LOOP:
                continue
            if (task / "stat").read_text().rpartition(") ")[2][0] != "S":
                return -1
            total_ns += int((task / "schedstat").read_text().split()[0])
        except OSError:  # ended since the listing
            continue
    return total_ns
