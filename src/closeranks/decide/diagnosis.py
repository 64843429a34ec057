"""From what was seen to the fault behind it, by rules of thumb.

A trouble is one loss, or one failure that lost nobody. The rules look only at the trouble itself; who was first
decides the diagnosis of an incident, since the others usually follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from closeranks import faults
from closeranks.decide.protocol import Crash, Hint

# Numbers of Linux; the standard library's names would bring along calls that are not pure.
SIGNALS: Mapping[int, str] = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}
_NATIVE = frozenset({"SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV"})
_NO_MEMORY = frozenset({"MemoryError", "OutOfMemoryError"})  # of Python and of torch
NO_ANSWER = "does not answer"  # in the detail of a stuck process whose control thread is silent


class Seen(StrEnum):
    """How trouble showed itself; the ``detector`` of the journal's ``ErrorSeen``."""

    EXIT = "exit"
    EXCEPTION = "exception"
    LEFT_EARLY = "left-early"
    PROGRESS = "progress"  # one process is stuck
    STANDSTILL = "standstill"  # nobody moves, nobody can be named
    MISMATCH = "mismatch"  # nobody moves, collectives differ
    POISON = "poison"
    DEADLINE = "deadline"  # a phase of a recovery took too long
    NO_JOIN = "no-join"  # some processes called join, others ended without
    LATE_JOIN = "late-join"  # some processes called join, others live and did not
    DIGEST = "digest"  # state that must be equal is not
    NO_DONOR = "no-donor"  # nobody holds state that others could take
    REPLAY = "replay"  # a seat computed something else when the step was repeated
    OUTVOTED = "outvoted"  # the state of a seat is not that of the majority
    NUMERICS = "numerics"  # the same wrong numbers came again, and no device is to blame
    DIVERGED = "diverged"  # the losses say that the model is damaged
    NODE = "node"  # a node is gone with all that ran there
    LEFT = "left"  # a node has left, as it was told to
    SILENCE = "silence"  # a node was out of reach while others went on
    COORDINATOR = "coordinator"  # it was lost in the middle of something
    CANARY = "canary"  # after a recovery, losses were not what they had been
    NO_ROOM = "no-room"  # seats were lost with their node, and no other node can take them


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong. ``seats`` are those it is ascribed to."""

    seen: Seen
    detail: str
    seats: tuple[int, ...] = ()
    node: str = ""  # the one that was lost
    fewer_seats: int = 0  # that the group can go on with
    domain: str = ""  # what failed as a whole, if the node was not lost alone
    proc: int | None = None
    code: int | None = None
    signal: int | None = None
    crash: Crash | None = None
    hint: Hint | None = None  # what the process's last words say
    left_at_step: int | None = None
    silent_s: float | None = None
    allowed_s: float | None = None

    @property
    def exit_code(self) -> int:
        """How the process ended: a signal n counts as 128 + n; 0 when no process ended by it, or with success."""
        if self.signal is not None:
            return 128 + self.signal
        return self.code or 0


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of the catalogue, the seats it struck, how sure that is, and why."""

    fault: str
    culprits: tuple[int, ...]
    confidence: float
    evidence: tuple[str, ...]


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What two failures have in common when one bug causes both. Seats do not matter."""

    error: str
    where: str
    step: int


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    return SIGNALS.get(number, f"signal {number}")


def when(step: int) -> str:
    """``in step 7``, or that it was before any."""
    return f"in step {step}" if step >= 0 else "before the first step"


def signature(trouble: Trouble, step: int) -> Signature | None:
    """The signature of a bug that would come again at the same place; None: repeating may well help.

    ``step`` is the newest closed one, for trouble that does not know its own.
    """
    if trouble.crash is not None:
        return Signature(error=trouble.crash.error, where=trouble.crash.where, step=trouble.crash.step)
    if trouble.seen is Seen.LEFT_EARLY:
        at = step if trouble.left_at_step is None else trouble.left_at_step
        return Signature(error=faults.LEFT_EARLY.name, where="", step=at)
    if trouble.seen is Seen.MISMATCH:
        return Signature(error=faults.MISMATCHED_COLLECTIVE.name, where="", step=step)
    return None


def late_steps_counted(seen: Mapping[Signature, int], known: int, closed: int) -> dict[Signature, int]:
    """These signatures once it is certain that the group had closed a later step than was ``known`` at the failure.

    The last steps before a failure are often heard of after it. Where its place is only known by them, the same bug
    would else seem to come at another place the next time.
    """
    late = {mark: replace(mark, step=closed) for mark in seen if mark.where == "" and known <= mark.step < closed}
    return {late.get(mark, mark): term for mark, term in seen.items()}


def diagnose(trouble: Trouble, *, repeated: bool, start_up: bool) -> Diagnosis:
    """The likeliest fault behind the trouble.

    ``repeated``: its signature was seen before a recovery already; ``start_up``: the group had not closed a step.
    """
    hint = trouble.hint
    if hint is not None:
        # What is exhausted or broken outside of the script stays the cause, however often it comes back.
        evidence = (trouble.detail, f"its last words: {hint.words}")
        return Diagnosis(fault=hint.fault, culprits=trouble.seats, confidence=hint.confidence, evidence=evidence)
    if trouble.crash is not None and trouble.crash.error in _NO_MEMORY:
        fault, confidence = faults.OUT_OF_MEMORY, 0.95
    elif repeated and trouble.crash is not None:
        fault, confidence = faults.DETERMINISTIC_BUG, 0.95
    elif start_up and trouble.seen in (Seen.EXCEPTION, Seen.EXIT) and trouble.signal is None:
        fault, confidence = faults.START_UP_CRASH, 0.9
    else:
        fault, confidence = _fault(trouble)
    return Diagnosis(fault=fault.name, culprits=trouble.seats, confidence=confidence, evidence=(trouble.detail,))


def _fault(trouble: Trouble) -> tuple[faults.Fault, float]:
    if trouble.seen is Seen.EXIT and trouble.signal is not None:
        native = signal_name(trouble.signal) in _NATIVE
        return (faults.NATIVE_CRASH, 0.9) if native else (faults.KILLED, 0.9)
    if trouble.seen is Seen.PROGRESS:
        # A process whose control thread is silent is stopped as a whole, or one thread keeps the interpreter's lock.
        return (faults.FROZEN, 0.7) if NO_ANSWER in trouble.detail else (faults.HUNG, 0.8)
    if trouble.seen is Seen.NODE:
        return (faults.DOMAIN_LOST, 0.8) if trouble.domain else (faults.NODE_LOST, 0.9)
    return {
        Seen.EXCEPTION: (faults.CRASHED, 0.95),
        Seen.EXIT: (faults.CRASHED, 0.6),
        Seen.LEFT_EARLY: (faults.LEFT_EARLY, 0.95),
        Seen.MISMATCH: (faults.MISMATCHED_COLLECTIVE, 0.8),
        Seen.STANDSTILL: (faults.NETWORK_LOSS, 0.4),
        Seen.POISON: (faults.NETWORK_LOSS, 0.3),
        Seen.DEADLINE: (faults.RECOVERY_STUCK, 0.6),
        Seen.LATE_JOIN: (faults.HUNG, 0.5),
        Seen.DIGEST: (faults.CORRUPT_REPLICA, 0.8),
        Seen.REPLAY: (faults.WRONG_RESULT, 0.9),
        Seen.OUTVOTED: (faults.CORRUPT_REPLICA, 0.95),
        Seen.NUMERICS: (faults.BAD_NUMERICS, 0.8),
        Seen.DIVERGED: (faults.BAD_NUMERICS, 0.6),
        Seen.CANARY: (faults.BAD_RECOVERY, 0.6),
        Seen.LEFT: (faults.PREEMPTED, 0.9),
        Seen.SILENCE: (faults.NETWORK_LOSS, 0.6),
        Seen.COORDINATOR: (faults.COORDINATOR_LOST, 0.9),
        Seen.NO_ROOM: (faults.NODE_LOST, 0.9),
    }.get(trouble.seen, (faults.UNKNOWN, 0.1))
