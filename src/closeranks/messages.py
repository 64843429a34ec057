"""What a worker and its supervisor say to each other over the control socket.

The control socket is one end of a socketpair that the worker inherited, so holding it is the proof of identity.
Every message that acts on the membership carries its term; a receiver drops what belongs to an older one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from closeranks import frames
from closeranks.decide.suspicion import Cause
from closeranks.detect.numerics import Signature
from closeranks.events import SeatEvidence


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


# --- worker to supervisor ---------------------------------------------------------------------------------------


class Hello(_Message, frozen=True, tag=True):
    """The process runs; sent before the first line of the user's script."""

    pid: int


class Joined(_Message, frozen=True, tag=True):
    """``join()`` was called; the worker now waits for a Seat (a spare goes on without one)."""

    facts: dict[str, str]


class NeedsSeat(_Message, frozen=True, tag=True):
    """A spare cannot go on without its rank: it is as warm as it gets."""


class Ready(_Message, frozen=True, tag=True):
    """The training loop is reached with nothing closed: the process can be seated warm."""

    rehearsed: bool
    replicated: bool  # False: the state is sharded, a lost seat has no donor


class SetupRecord(_Message, frozen=True, tag=True):
    """Results of this seat's set-up collectives, to be replayed to a successor; None: past the bound."""

    record: bytes | None


class Poisoned(_Message, frozen=True, tag=True):
    """An inner collective failed under this term."""

    term: int
    detail: str


class Paused(_Message, frozen=True, tag=True):
    """The block is left, inner operations are quiet: what this seat can bring into the next term."""

    term: int  # the term that ended
    closed_step: int  # -1: none closed, or the state is torn
    intact: bool  # False: a transfer was cut, the state is no donor's and needs one
    settled: bool  # gradient buckets have their final layout
    digest: str  # of the replicated state
    abandoned: int = 0  # groups of this process so far that nothing can wake, and that stay until it ends


class Regrouped(_Message, frozen=True, tag=True):
    """Inner groups of the term are connected."""

    term: int
    groups: str  # digest of the names and members of the groups that this process knows


class Restored(_Message, frozen=True, tag=True):
    """The restore plan is carried out; ``digest`` of the replicated state afterwards."""

    term: int
    step: int
    digest: str


class Resumed(_Message, frozen=True, tag=True):
    """The first attempt under the term was opened."""

    term: int
    lost_since_mono_s: float
    resumed_mono_s: float


class Finished(_Message, frozen=True, tag=True):
    """The last step is closed here; the worker waits for Leave."""

    step: int


class Confirmed(_Message, frozen=True, tag=True):
    """The answer to Confirm."""

    term: int
    digest: str  # of the replicated state at the end; "": it is not compared


class LeftLoop(_Message, frozen=True, tag=True):
    """The user's code left ``steps()`` before its end."""

    closed_step: int


class Failed(_Message, frozen=True, tag=True):
    """An exception is about to end this process."""

    error: str
    message: str
    where: str
    step: int
    traceback: str


class Snapped(_Message, frozen=True, tag=True):
    """This seat's part of the state is in its arena: it shows the state after ``step``."""

    save: int
    step: int
    image_bytes: int
    pause_s: float
    problem: str = ""  # why there is no image; the arena is void then
    data_position: Any = None  # JSON


class Loaded(_Message, frozen=True, tag=True):
    """Saved state was read and checked beside the live one, which is unchanged; or why it cannot be used."""

    step: int
    problem: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()  # homes that were damaged or out of reach, and what was used in their place


class Replayed(_Message, frozen=True, tag=True):
    """A checkpoint was tried out: the loss of seat 0 in the step after it, or why there is none."""

    generation: int
    loss: float
    problem: str = ""


class Adopted(_Message, frozen=True, tag=True):
    """The state that was loaded is the live one now."""

    step: int


class Splits(_Message, frozen=True, tag=True):
    """The script asks us how finely it should split its batches (``job.accumulation``): this seat can go so far."""

    finer: int  # the most times that a batch can be split finer than the script means to; 1: it cannot


class Pong(_Message, frozen=True, tag=True):
    """The control thread is alive."""

    nonce: int


class Stack(_Message, frozen=True, tag=True):
    """Stacks of all threads, asked for by Dump."""

    text: str


class Timer(_Message, frozen=True, tag=True):
    """Summary of one operation timer."""

    name: str
    count: int
    p50_s: float
    p99_s: float


class Held(_Message, frozen=True, tag=True):
    """A suspect attempt was not applied; the step is repeated."""

    step: int
    attempt: int
    findings: tuple[str, ...]
    evidence: tuple[SeatEvidence, ...]
    samples: tuple[int, ...]
    seed: int | None


class Ruled(_Message, frozen=True, tag=True):
    """What all seats concluded from an attempt. Every seat says it when the supervisor is to act."""

    term: int
    step: int
    verdict: str  # of a replay; "": there was none
    then: str
    cause: Cause
    seats: tuple[int, ...]
    stop: bool
    roll_back: bool
    reason: str
    record: bool  # this seat's word goes to the journal, as the lowest one that is not convicted


class CurveSeen(_Message, frozen=True, tag=True):
    """The training curve shows a signature."""

    term: int
    step: int
    signature: Signature
    act: bool  # the script wants it answered, if the answer is to roll back


class Injected(_Message, frozen=True, tag=True):
    """A drill's fault is about to strike in this process."""

    fault: str
    step: int
    moment: str


WorkerMessage = (
    Hello
    | Joined
    | NeedsSeat
    | Ready
    | SetupRecord
    | Poisoned
    | Paused
    | Regrouped
    | Restored
    | Resumed
    | Finished
    | Confirmed
    | LeftLoop
    | Snapped
    | Loaded
    | Adopted
    | Replayed
    | Failed
    | Splits
    | Pong
    | Stack
    | Timer
    | Held
    | Ruled
    | CurveSeen
    | Injected
)


# --- supervisor to worker ---------------------------------------------------------------------------------------


class Interrupt(_Message, frozen=True, tag=True):
    """The term is over: wake up, poison it, leave the block, send Paused."""

    term: int
    reason: str


class Seat(_Message, frozen=True, tag=True):
    """A new term and this worker's place in it. Members meet at the store (key prefix: the term)."""

    term: int
    seat: int
    incarnation: int
    size: int
    store_host: str
    store_port: int
    finer: int = 1  # so many times finer than the script means to, batches are split
    descriptors: int = 0  # that come with it: page and set-up record, for a process that had no seat


class Restore(_Message, frozen=True, tag=True):
    """Continue after ``step``; receivers take the donor's replicated state first."""

    term: int
    step: int  # last closed step, -1: from the initial state
    donor: int | None  # seat
    receivers: tuple[int, ...]  # seats


class Go(_Message, frozen=True, tag=True):
    """All members hold verified state: open the next attempt."""

    term: int


class StopAfter(_Message, frozen=True, tag=True):
    """End ``steps()`` in an orderly way once ``step`` is closed."""

    step: int


class Snapshot(_Message, frozen=True, tag=True):
    """Once ``step`` is closed, copy this seat's part of the state into arena ``slot``."""

    save: int
    step: int
    slot: int


class SaveProblem(_Message, frozen=True, tag=True):
    """A save did not become durable; training goes on."""

    step: int
    problem: str


class Load(_Message, frozen=True, tag=True):
    """Read saved state and check it, beside the live state: sent to the members of a group that starts with it.

    ``descriptors`` arenas come with it, one for each writer of the snapshot of ``step`` that is in memory.
    """

    step: int
    generation: int | None  # of the store; None: it was not committed
    store: str
    tiers: str = ""  # the file that names further homes to look at
    world: int = 0  # seats that saved what these further homes hold
    descriptors: int = 0


class Replay(_Message, frozen=True, tag=True):
    """To a spare: load this checkpoint, do the step after it as seat 0 does, tell the loss, and be as before."""

    load: Load


class Adopt(_Message, frozen=True, tag=True):
    """Every member has loaded the state of ``step``: make it the live one."""

    step: int


class Confirm(_Message, frozen=True, tag=True):
    """Every seat closed the last step: say that you are still there, before anybody leaves."""

    term: int


class Leave(_Message, frozen=True, tag=True):
    """Every seat closed the last step (or: the job needs no spare any more)."""


class Ping(_Message, frozen=True, tag=True):
    """Asks the control thread for a Pong."""

    nonce: int


class Dump(_Message, frozen=True, tag=True):
    """Asks for a Stack."""


SupervisorMessage = (
    Interrupt
    | Seat
    | Restore
    | Go
    | StopAfter
    | Snapshot
    | SaveProblem
    | Load
    | Replay
    | Adopt
    | Confirm
    | Leave
    | Ping
    | Dump
)

Message = WorkerMessage | SupervisorMessage


FrameError = frames.FrameError


def encode(message: Message) -> bytes:
    """One frame, ready to be written."""
    return frames.encode(message)


class Decoder(frames.Decoder[Message]):
    """Cuts a byte stream into messages: feed it what was read, take what is complete."""
