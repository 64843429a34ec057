"""What the controller is told and what it answers: facts in, decisions out.

The controller is a pure state machine, ``step(state, fact, now_s) -> state, decisions``. Facts come from a
supervisor (or a simulator), decisions are carried out by one. ``now_s`` is any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from closeranks.decide.quarantine import Register
from closeranks.decide.suspicion import Cause
from closeranks.events import AnyEvent


class _Value(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class Crash(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker's own exception; equal place and step twice is a deterministic bug."""

    error: str
    message: str
    where: str
    step: int


class Hint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault outside of the script that the last words of a process name."""

    fault: str  # a name of the catalogue
    confidence: float
    words: str


class Origin(StrEnum):
    """What a new group begins with."""

    NOTHING = "nothing"  # the state that the script builds
    NEWEST = "newest"  # the newest state that can be restored
    VERIFIED = "verified"  # the newest checkpoint that is trusted: corruption is suspected since


# --- facts ------------------------------------------------------------------------------------------------------


class Begun(_Value, frozen=True, tag=True):
    """The run starts: the first fact. ``saved_step``: there is state to go on with, from an earlier run."""

    saved_step: int | None = None
    register: Register = Register()  # what is remembered of nodes, in times of the controller's clock


class ProcJoined(_Value, frozen=True, tag=True):
    """The process called ``join``."""

    proc: int


class ProcReady(_Value, frozen=True, tag=True):
    """The process waits in its loop (or, a spare, for its rank) and can be seated warm."""

    proc: int
    replicated: bool  # False: sharded state, a lost seat has no donor
    settled: bool  # its gradient buckets have their final layout


class ProcEnded(_Value, frozen=True, tag=True):
    """The process is gone for certain, or fenced (``unkillable``): it can never act on the job again."""

    proc: int
    code: int | None
    signal: int | None
    crash: Crash | None
    left_at_step: int | None  # it left the loop early after this closed step
    unkillable: bool = False
    hint: Hint | None = None


class ProcStuck(_Value, frozen=True, tag=True):
    """Confirmed: this process makes no progress while others wait for it."""

    proc: int
    detail: str
    silent_s: float
    allowed_s: float


class GroupStuck(_Value, frozen=True, tag=True):
    """Confirmed: nobody makes progress and nobody can be named (data plane cut, mismatched collectives)."""

    detail: str
    suspects: tuple[int, ...]  # procs whose collective differs from the others', may be empty


class TermPoisoned(_Value, frozen=True, tag=True):
    """An inner collective failed in this process."""

    proc: int
    term: int
    detail: str


class ProcPaused(_Value, frozen=True, tag=True):
    """A member left its block after an interrupt or poison and brings this into the next term."""

    proc: int
    term: int
    closed_step: int
    intact: bool
    settled: bool
    digest: str


class ProcRegrouped(_Value, frozen=True, tag=True):
    """Inner groups of the term are connected in this process."""

    proc: int
    term: int
    groups: str


class ProcRestored(_Value, frozen=True, tag=True):
    """The process carried out the restore plan."""

    proc: int
    term: int
    step: int
    digest: str


class ProcResumed(_Value, frozen=True, tag=True):
    """The process opened its first attempt under the term."""

    proc: int
    term: int


class StepRuled(_Value, frozen=True, tag=True):
    """All members concluded the same from an attempt at a step, and leave the rest to the controller."""

    proc: int
    term: int
    step: int
    cause: Cause
    seats: tuple[int, ...]  # to be replaced
    stop: bool
    roll_back: bool
    reason: str


class ProcSplits(_Value, frozen=True, tag=True):
    """The script of this process splits its batches as it is told, up to so many times finer than it means to."""

    proc: int
    finer: int


class StateSaved(_Value, frozen=True, tag=True):
    """A restart of the group could go on after this step."""

    step: int


class GroupLoaded(_Value, frozen=True, tag=True):
    """Every seat of a new group took saved state over, before it reached its loop."""

    step: int


class StepDone(_Value, frozen=True, tag=True):
    """Every seat closed the step."""

    step: int
    duration_s: float  # from the first opening of it to the last close
    period_s: float = 0.0  # since the step before was closed; 0: unknown
    ago_s: float = 0.0  # that the last seat closed it, before it is told
    loss: float | None = None  # mean of the seats that reported a finite one
    grad_norm: float | None = None


class StateSuspected(_Value, frozen=True, tag=True):
    """Somebody has reason to think that the state holds wrong values: no save is trusted until this is cleared."""

    source: str  # who: suspicions of different sources stand side by side
    detail: str


class StateCleared(_Value, frozen=True, tag=True):
    """The reason is gone: the state was found to be right, or what was wrong was put right."""

    source: str
    detail: str


class ProcFinished(_Value, frozen=True, tag=True):
    """The process closed its last step and waits for leave."""

    proc: int
    step: int


class ProcConfirmed(_Value, frozen=True, tag=True):
    """The process is still there after all had closed the last step."""

    proc: int
    term: int
    digest: str  # of its replicated state; "": it is not compared


class StopAsked(_Value, frozen=True, tag=True):
    """SIGTERM or Ctrl-C. ``now`` after the second one."""

    now: bool
    signal: int = 15  # its number: a stopped run exits with 128 + signal


class KnownProc(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process, as its node knows it after the coordinator was out of reach."""

    proc: int
    seat: int | None
    incarnation: int | None
    stage: str  # a ``state.Stage``
    term: int  # the last that it was seated under, else that it was started for
    newcomer: bool  # joined a group that was training
    replicated: bool
    settled: bool
    looped: bool  # it has been in its loop as a member: its state is the job's
    paused: ProcPaused | None = None  # the newest
    groups: str = ""
    digest: str = ""
    restored_step: int = -1
    size: int = 0  # seats of the group that it was started for; 0: as many as there are


class NodeJoined(_Value, frozen=True, tag=True):
    """A node that passed its checks is there, empty; it can hold ``slots`` seats."""

    node: str
    slots: int
    domains: Mapping[str, str] = {}  # level to name, e.g. {"rack": "r7"}: what fails as one
    host: str = ""  # the machine's name, under which its history is kept


class NodeLost(_Value, frozen=True, tag=True):
    """The node is fenced: none of its processes can ever act on the job again."""

    node: str
    detail: str
    hopeless: str = ""  # why the run cannot go on without it; empty: find out
    waited_s: float = 0.0  # since it was last heard: nobody waits so long for another one once more


class NodeSilent(_Value, frozen=True, tag=True):
    """Nothing is heard of the node, and nothing reaches it; NodeBack or NodeLost will follow."""

    node: str
    detail: str


class NodeBack(_Value, frozen=True, tag=True):
    """A silent node can be reached again; what was told to it meanwhile was not heard there."""

    node: str
    procs: tuple[KnownProc, ...]  # all that live there
    ended: tuple[ProcEnded, ...] = ()  # meanwhile


class NodeFitness(_Value, frozen=True, tag=True):
    """Whether anything speaks against giving the node new work. What it does already it goes on with.

    Of a node that is not counted with: why not.
    """

    node: str
    unfit: str  # why, "" if nothing does


class NodeLeaves(_Value, frozen=True, tag=True):
    """The node was told to leave by this signal, and the job is to go on: its seats have to go elsewhere first."""

    node: str
    signal: int


class Tick(_Value, frozen=True, tag=True):
    """Time passed; sent at least every 0.25 s."""


Fact = (
    Begun
    | ProcJoined
    | ProcReady
    | ProcEnded
    | ProcStuck
    | GroupStuck
    | TermPoisoned
    | ProcPaused
    | ProcRegrouped
    | ProcRestored
    | ProcResumed
    | StepRuled
    | ProcSplits
    | StateSaved
    | GroupLoaded
    | StepDone
    | StateSuspected
    | StateCleared
    | ProcFinished
    | ProcConfirmed
    | StopAsked
    | NodeJoined
    | NodeLost
    | NodeSilent
    | NodeBack
    | NodeFitness
    | NodeLeaves
    | Tick
)


# --- decisions --------------------------------------------------------------------------------------------------


class StartGroup(_Value, frozen=True, tag=True):
    """Start one process for every seat: ``procs[seat]`` on ``nodes[seat]``, under this term."""

    term: int
    procs: tuple[int, ...]
    origin: Origin = Origin.NOTHING
    before_step: int | None = None  # only state of an earlier step is used: what came after did not work out
    nodes: tuple[str, ...] = ()  # empty: all on the only node
    finer: int = 1  # batches are split so many times finer than the script means to


class StartProc(_Value, frozen=True, tag=True):
    """Start one process, for a seat or (None) as a spare."""

    proc: int
    seat: int | None
    incarnation: int | None
    node: str = ""  # "": the only node
    finer: int = 1


class Isolate(_Value, frozen=True, tag=True):
    """Make sure that the process can never act again: stacks first if it is stuck, then SIGKILL, then ProcEnded."""

    proc: int
    reason: str
    capture_stack: bool


class InterruptTerm(_Value, frozen=True, tag=True):
    """Wake these members and poison the term in them."""

    term: int
    procs: tuple[int, ...]
    reason: str


class BeginTerm(_Value, frozen=True, tag=True):
    """Open a rendezvous for these members: ``procs[seat]``, ``incarnations[seat]``."""

    term: int
    procs: tuple[int, ...]
    incarnations: tuple[int, ...]
    finer: int = 1  # batches are split so many times finer than the script means to


class PlanRestore(_Value, frozen=True, tag=True):
    """Tell every member of the term where it goes on and whose state it takes (seats)."""

    term: int
    step: int
    donor: int | None
    receivers: tuple[int, ...]


class GoOn(_Value, frozen=True, tag=True):
    """All members are verified: open the next attempt."""

    term: int


class EndAfterStep(_Value, frozen=True, tag=True):
    """An orderly stop: finish the step in flight on every seat, or one soon after it that all hear of, then leave."""


class ConfirmEnd(_Value, frozen=True, tag=True):
    """The loop is over everywhere: ask the members whether they are still there, while a lost one can be replaced."""

    term: int


class LetLeave(_Value, frozen=True, tag=True):
    """The loop is over everywhere: members and spares may leave."""


class EndRun(_Value, frozen=True, tag=True):
    """The run is over: end what still lives (with the grace period unless ``now``), exit with the code."""

    outcome: str  # "completed", "failed", "stopped"
    exit_code: int
    reason: str
    now: bool = False


class LetNodeGo(_Value, frozen=True, tag=True):
    """A node that was told to leave may end its processes and itself: others take its seats. NodeLost follows."""

    node: str


class Note(_Value, frozen=True, tag=True):
    """Write this event to the journal; nothing else depends on it."""

    event: AnyEvent


Decision = (
    StartGroup
    | StartProc
    | Isolate
    | InterruptTerm
    | BeginTerm
    | PlanRestore
    | GoOn
    | EndAfterStep
    | ConfirmEnd
    | LetLeave
    | EndRun
    | LetNodeGo
    | Note
)
