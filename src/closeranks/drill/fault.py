"""One planned fault, fully determined: what strikes, whom, when."""

from __future__ import annotations

from enum import StrEnum

import msgspec

ANY_INCARNATION = 0
ENVIRONMENT = "CLOSERANKS_DRILL"  # path of a JSON list of faults


class Kind(StrEnum):
    """What a drill can do to a worker."""

    KILL = "kill"  # SIGKILL
    FREEZE = "freeze"  # SIGSTOP
    EXCEPTION = "exception"  # raised where the fault strikes
    GIL = "gil"  # a call that never gives the interpreter lock back
    BLOCK = "block"  # a native call that does not return; other threads run on
    EXIT0 = "exit0"  # ends at once and reports success
    SYSTEM_EXIT = "system_exit"  # SystemExit(0), as sys.exit() raises it
    EXIT_CODE = "exit_code"  # ends at once with FAILURE_CODE
    SEGFAULT = "segfault"  # reads address 0
    PAUSE = "pause"  # sleeps once, and is to be left alone
    SLOW = "slow"  # sleeps in this and every later step, and is to be left alone


class Moment(StrEnum):
    """Where in a worker's life a fault strikes."""

    START_UP = "start-up"
    FORWARD = "forward"
    BACKWARD = "backward"
    COLLECTIVE = "collective"
    APPLY = "apply"
    BETWEEN = "between"
    CLOSING = "closing"
    SNAPSHOT = "snapshot"  # before the state is copied
    LOADING = "loading"  # saved state is being read at the start of a group
    RECOVERING = "recovering"
    IDLE = "idle"


FAILURE_CODE = 7
HARMLESS = frozenset({Kind.PAUSE, Kind.SLOW})  # negative controls
FROM_A_TIMER = frozenset({Kind.KILL, Kind.FREEZE})  # kinds that any thread can carry out for the whole process
AT_EXACT_STEP = frozenset(
    {Moment.FORWARD, Moment.BACKWARD, Moment.COLLECTIVE, Moment.APPLY, Moment.CLOSING, Moment.BETWEEN}
)


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Strikes once in a run. ``volley``: faults that share a number above 0 strike together."""

    kind: Kind
    seat: int
    step: int
    moment: Moment
    incarnation: int = 1  # ANY_INCARNATION: whoever sits there
    after_ms: float = 0.0  # between reaching the moment and striking
    for_s: float = 3600.0  # how long gil, block, pause and each slow step last
    depth: float = 0.5  # how far into forward or backward, in [0, 1)
    volley: int = 0

    def due(self, moment: str, step: int) -> bool:
        """Whether a worker that reaches ``moment`` of ``step`` is where this fault strikes.

        Moments outside the steps cannot be planned to the step: in a recovery a fault strikes once ``step`` is
        closed, at start-up and idling at any step.
        """
        if moment != self.moment:
            return False
        if self.kind is Kind.SLOW or self.moment is Moment.RECOVERING:
            return step >= self.step
        return self.moment not in AT_EXACT_STEP or step == self.step

    def __str__(self) -> str:
        """For example ``kill in backward of step 7, seat 2``."""
        place = f"in {self.moment}" + (f" of step {self.step}" if self.moment in AT_EXACT_STEP else "")
        later = f" + {self.after_ms:g} ms" if self.after_ms else ""
        sitter = {ANY_INCARNATION: "", 1: ""}.get(self.incarnation, f".{self.incarnation}")
        return f"{self.kind} {place}{later}, seat {self.seat}{sitter}"
