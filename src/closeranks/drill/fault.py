"""One planned fault, fully determined: what strikes, whom, when, how long, and how much of it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

ANY_INCARNATION = 0
ENVIRONMENT = "CLOSERANKS_DRILL"  # path of a JSON list of faults
INTERMITTENT_STEPS = 3  # an intermittent fault strikes in every third step


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
    SECTION = "section"  # an evaluation in a section of its own; to be left alone
    DRAG = "drag"  # this and every later step takes a share longer than the seat's own work
    SKIP = "skip"  # leaves one collective out
    RESIZE = "resize"  # calls one collective with half of the elements
    NAN = "nan"  # one element becomes NaN: of an activation, or of a gradient
    FLIP_WEIGHT = "flip-weight"  # bits of one element
    FLIP_GRADIENT = "flip-gradient"
    FLIP_ACTIVATION = "flip-activation"
    FLIP_OPTIMIZER = "flip-optimizer"
    DUPLICATE_BATCH = "duplicate-batch"  # the seat trains on what another seat trains on
    STALE_BATCH = "stale-batch"  # the seat trains on what it trained on one step before
    NO_SPACE = "no-space"  # ENOSPC
    IO_ERROR = "io-error"  # EIO
    TORN_WRITE = "torn-write"  # the store has half of what it says it has
    SHM_FULL = "shm-full"  # a loader finds no room in shared memory
    CLOCK_JUMP = "clock-jump"  # the wall clock of worker and supervisor is an hour ahead
    LOST_METRICS = "lost-metrics"  # the kernel tells the supervisor nothing of memory and disk any more
    XID = "xid"  # the accelerator's driver writes a code to the kernel log, and the process's call fails


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


class Lasting(StrEnum):
    """How long a fault lasts."""

    TRANSIENT = "transient"  # once
    INTERMITTENT = "intermittent"  # in every third step from its step on
    STUCK = "stuck"  # in its step and all later ones


FAILURE_CODE = 7
CLOCK_JUMP_S = 3600.0
HARMLESS = frozenset({Kind.PAUSE, Kind.SLOW, Kind.SECTION})  # negative controls
FROM_A_TIMER = frozenset({Kind.KILL, Kind.FREEZE})  # kinds that any thread can carry out for the whole process
FLIPS = frozenset({Kind.FLIP_WEIGHT, Kind.FLIP_GRADIENT, Kind.FLIP_ACTIVATION, Kind.FLIP_OPTIMIZER})
OF_COLLECTIVES = frozenset({Kind.SKIP, Kind.RESIZE})
OF_DATA = frozenset({Kind.DUPLICATE_BATCH, Kind.STALE_BATCH})
OF_FILES = frozenset({Kind.NO_SPACE, Kind.IO_ERROR, Kind.TORN_WRITE})
IN_SCRIPT = frozenset({Moment.FORWARD, Moment.BACKWARD, Moment.COLLECTIVE, Moment.APPLY})  # where the script runs
AT_EXACT_STEP = frozenset(
    {Moment.FORWARD, Moment.BACKWARD, Moment.COLLECTIVE, Moment.APPLY, Moment.CLOSING, Moment.BETWEEN}
)


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Strikes once in a run, or as it lasts. ``volley``: faults that share a number above 0 strike together."""

    kind: Kind
    seat: int
    step: int
    moment: Moment
    incarnation: int = 1  # ANY_INCARNATION: whoever sits there
    after_ms: float = 0.0  # between reaching the moment and striking
    for_s: float = 3600.0  # how long gil, block, pause, section and each slow step last
    depth: float = 0.5  # how far into forward or backward, in [0, 1)
    volley: int = 0
    lasting: Lasting = Lasting.TRANSIENT
    bits: int = 1  # of one element, that are flipped
    share: float = 0.15  # of the seat's own time, by which a dragging step takes longer
    draw: int = 0  # seed of which element and which bits

    def due(self, moment: str, step: int) -> bool:
        """Whether a worker that reaches ``moment`` of ``step`` is where this fault strikes.

        Moments outside the steps cannot be planned to the step: in a recovery a fault strikes once ``step`` is
        closed, at start-up and idling at any step, before a snapshot at the first one from ``step`` on.
        """
        if moment != self.moment:
            return False
        if self.lasting is Lasting.INTERMITTENT:
            return step >= self.step and (step - self.step) % INTERMITTENT_STEPS == 0
        if self.repeats or self.moment in (Moment.RECOVERING, Moment.SNAPSHOT):
            return step >= self.step
        return self.moment not in AT_EXACT_STEP or step == self.step

    @property
    def repeats(self) -> bool:
        """Whether it strikes again after it struck first, in the same process."""
        return self.lasting is not Lasting.TRANSIENT or self.kind in (Kind.SLOW, Kind.DRAG)

    def __str__(self) -> str:
        """For example ``kill in backward of step 7, seat 2``."""
        place = f"in {self.moment}" + (f" of step {self.step}" if self.moment in AT_EXACT_STEP else "")
        later = f" + {self.after_ms:g} ms" if self.after_ms else ""
        sitter = {ANY_INCARNATION: "", 1: ""}.get(self.incarnation, f".{self.incarnation}")
        often = "" if self.lasting is Lasting.TRANSIENT else f", {self.lasting}"
        return f"{self.kind} {place}{later}, seat {self.seat}{sitter}{often}"


def read_faults(path: Path) -> tuple[Fault, ...]:
    """The faults of a file that ``CLOSERANKS_DRILL`` names.

    Raises:
        ValueError: it is no readable list of faults.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[Fault, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{ENVIRONMENT}={path}: expected a JSON list of faults: {error}") from error
