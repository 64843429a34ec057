"""What was seen and what was decided, by whom and when: the journal's schema.

Events are facts. What an event *means* is for ``diagnose`` and ``decide``; what it cost is for ``observe``.
All times named ``*_mono_s`` are CLOCK_MONOTONIC seconds of the node that wrote the record; of a record with a stamp,
those of the event are of the node on which that coordinator ran.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Category(StrEnum):
    """Where a process-second went. Each belongs to exactly one."""

    START_UP = "start-up"
    USEFUL = "useful step"
    REPEATED = "repeated step"
    STALLED = "stalled by a failure"
    SNAPSHOT = "snapshot"
    SPARE_IDLE = "spare idle"
    SHUT_DOWN = "shut-down"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """The parts of a recovery, in their order."""

    SEE = "see"
    DIAGNOSE = "diagnose"
    DECIDE = "decide"
    ISOLATE = "isolate"
    INTERRUPT = "interrupt"
    REGROUP = "regroup"
    AGREE = "agree"
    TRANSFER = "transfer"
    VERIFY = "verify"


class Rung(StrEnum):
    """One recovery action on the ladder, cheapest first."""

    WAIT = "wait"
    RETRY = "retry the step"
    REGROUP = "regroup in place"
    SPARE = "replace from a spare"
    FORK = "replace by a fork"
    RESPAWN = "respawn on the node"
    REPLACE_NODE = "replace the node"
    SHRINK = "shrink"
    COLD_RESTART = "cold restart"
    ROLL_BACK = "roll back"
    STOP = "stop"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """The base of all events; the class name is its ``kind`` in the journal."""


# --- the life of a run ------------------------------------------------------------------------------------------


class RunStarted(Event, frozen=True, tag=True):
    """A supervisor began a run; of a job on several nodes each says so in its own journal."""

    command: tuple[str, ...]
    seats: int  # of the whole job
    spares: int  # of this node
    pid: int
    versions: dict[str, str]


class PreflightDone(Event, frozen=True, tag=True):
    """Versions, script digest and resources were compared; ``findings`` is empty when all agree."""

    findings: tuple[str, ...]


class SignalReceived(Event, frozen=True, tag=True):
    """The supervisor was told to end the run."""

    signal: int
    meaning: str


class RunEnded(Event, frozen=True, tag=True):
    """The last record of a run."""

    outcome: str  # "completed", "failed", "stopped"
    exit_code: int
    reason: str


# --- several nodes, one job -------------------------------------------------------------------------------------


class NodeStarted(Event, frozen=True, tag=True):
    """The supervisor of one node of several began; the other nodes' part of the run is in their journals."""

    rank: int
    nodes: int  # that the job was asked to have, further spare nodes not among them
    slots: int  # workers that it can hold
    boot: str  # of this supervisor: a node that comes back has another
    hostname: str


class CoordinatorBegan(Event, frozen=True, tag=True):
    """A coordinator took up its work: the first record of its epoch. Which one, and where, says the stamp."""

    reason: str  # why it is this one: "the first", or what became of the one before


class CoordinatorFollowed(Event, frozen=True, tag=True):
    """This node has a grant of that coordinator, and obeys it."""

    epoch: int
    leader: str  # its node


class CoordinatorLost(Event, frozen=True, tag=True):
    """This node no longer hears the coordinator that it followed."""

    epoch: int
    detail: str


class NodeAccepted(Event, frozen=True, tag=True):
    """The coordinator counts with this node from now on."""

    node: str
    boot: str
    slots: int
    domains: dict[str, str]  # level to name, such as rack to r7


class NodeGone(Event, frozen=True, tag=True):
    """The coordinator has done with this node: none of its processes can act in the job any more."""

    node: str
    boot: str
    detail: str


# --- the life of a process --------------------------------------------------------------------------------------


class ProcessStarted(Event, frozen=True, tag=True):
    """A worker process exists. ``seat`` is None for a spare."""

    proc: int  # number of the process in this run, 1.., never reused
    pid: int
    how: str  # "fork" or "spawn"
    seat: int | None = None


class ProcessJoined(Event, frozen=True, tag=True):
    """The process called ``join``; ``facts`` are what preflight compares."""

    proc: int
    facts: dict[str, str]


class ProcessReady(Event, frozen=True, tag=True):
    """The process reached its training loop (or asked for its rank) and can be seated."""

    proc: int
    rehearsed: bool


class ProcessSeated(Event, frozen=True, tag=True):
    """The process took a seat under the record's term; its name is now ``s<seat>.<incarnation>``."""

    proc: int
    seat: int
    incarnation: int


class ProcessFailed(Event, frozen=True, tag=True):
    """A worker reported its own uncaught exception before it ended."""

    proc: int
    seat: int | None
    error: str  # type of the exception
    message: str
    where: str  # "train.py:31", innermost frame of the user's script
    step: int
    traceback: str


class ProcessExited(Event, frozen=True, tag=True):
    """The process ended: exactly one of ``code`` and ``signal`` is set."""

    proc: int
    seat: int | None
    code: int | None = None
    signal: int | None = None
    asked: bool = False  # the supervisor had told it to end


class Account(Event, frozen=True, tag=True):
    """Seconds of one process by category since it started; cumulative, the last one counts."""

    proc: int
    at_mono_s: float
    seconds: dict[Category, float]


# --- steps ------------------------------------------------------------------------------------------------------


class StepClosed(Event, frozen=True, tag=True):
    """Every seat closed this step, or every seat of this node. Losses are by seat, None where none was reported."""

    step: int
    began_mono_s: float  # first seat opened the attempt that succeeded
    closed_mono_s: float  # last seat closed it
    losses: tuple[float | None, ...]
    repeated: bool = False  # a step of this or a higher number had been closed before
    seats: tuple[int, ...] = ()  # for which this record speaks, in a job on several nodes; empty: for all
    own_s: tuple[float | None, ...] = ()  # by seat: until its last collective, without waits; see train/own_time.py
    grad_norm: float | None = None  # mean of the seats that reported a finite one


class TimerSummary(Event, frozen=True, tag=True):
    """Operation timings of one seat (``job.timer``)."""

    proc: int
    seat: int
    name: str
    count: int
    p50_s: float
    p99_s: float


# --- health -----------------------------------------------------------------------------------------------------


class StragglerNamed(Event, frozen=True, tag=True):
    """These seats keep the others waiting, step after step. A later record with other seats takes this one's place."""

    step: int
    seats: tuple[int, ...]
    scope: str  # what they share: "seat", "seats", "node", or the level of a domain
    where: str
    cause: str  # a value of detect.straggler_cause.Cause
    slower: float  # than the others: 0.15 for 15 %
    z: float
    break_even_s: float  # how long they must stay slow for a replacement to pay
    reason: str


class StragglerEased(Event, frozen=True, tag=True):
    """These seats were named and keep nobody waiting any more."""

    step: int
    seats: tuple[int, ...]


class NetworkSlow(Event, frozen=True, tag=True):
    """Steps grew longer by what is spent in collectives; nobody's own time explains it."""

    step: int
    apart_s: float  # a step's time beyond the longest own time
    usual_s: float


class NodeChecked(Event, frozen=True, tag=True):
    """This node's devices, memory, disk and links were tried before it took seats."""

    level: str
    outcomes: dict[str, str]  # by check: "passed", or "failed: ...", "absent: ...", "unknown: ..."
    took_s: float


class NodeUnwell(Event, frozen=True, tag=True):
    """Telemetry of this node shows an error, or has stopped to show anything. Told once, until it is over."""

    sign: str
    detail: str
    drain: bool  # the node should be given no new work


class NodeWell(Event, frozen=True, tag=True):
    """What NodeUnwell told is over."""

    sign: str


# --- trouble ----------------------------------------------------------------------------------------------------


class ErrorSeen(Event, frozen=True, tag=True):
    """A detector saw a deviation. ``silent_s`` and ``allowed_s`` are set for a lack of progress."""

    detector: str  # "exit", "exception", "progress", "poison", "digest", "left-early", ...
    seat: int | None
    proc: int | None
    detail: str
    incident: int | None = None
    silent_s: float | None = None
    allowed_s: float | None = None


class DeadlineChanged(Event, frozen=True, tag=True):
    """A learned deadline moved."""

    phase: str
    allowed_s: float
    reason: str


class StackCaptured(Event, frozen=True, tag=True):
    """Stacks of a process were written to ``path`` (relative to the run folder) before it was killed."""

    proc: int
    path: str
    summary: str  # innermost frame of the main thread


class GroupsAbandoned(Event, frozen=True, tag=True):
    """Connections of former terms that nothing can wake: their threads and descriptors stay until the process ends."""

    proc: int
    seat: int | None
    groups: int  # of this process so far


class FaultInjected(Event, frozen=True, tag=True):
    """A drill broke something on purpose."""

    fault: str
    seat: int | None
    proc: int | None
    step: int
    moment: str


class SeatEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one seat computed in a held attempt, before anybody else's gradients were added."""

    seat: int
    proc: int
    finite: bool
    norm: float | None  # of its gradients; None: not finite
    fingerprint: str  # of its gradients
    loss: float | None = None
    part: int | None = None  # the seat whose part of the step this is, in a spot check; None: its own


class StepHeld(Event, frozen=True, tag=True):
    """A suspect attempt was not applied. It is repeated with the same samples, state and random numbers."""

    step: int
    attempt: int
    findings: tuple[str, ...]
    evidence: tuple[SeatEvidence, ...]
    samples: tuple[int, ...]  # of the data set, in order; seats took slices of them
    seed: int | None  # with step and seat it determines the random numbers; None: they are the script's own


class StepReplayed(Event, frozen=True, tag=True):
    """A held step was repeated."""

    step: int
    verdict: str  # "transient", "persistent", "repeated", "correct", "unrepeatable"
    seats: tuple[int, ...]  # convicted, or to be tried in another process
    then: str  # "apply", "replay", "skip", "await the supervisor"
    reason: str


class StepSkipped(Event, frozen=True, tag=True):
    """The step was closed on all seats without its update."""

    step: int
    reason: str


class SpotChecks(Event, frozen=True, tag=True):
    """How the steps that are checked are computed twice from now on."""

    step: int  # the first of them
    way: str  # "swapped": also by other seats; "own": by the same seat; "off": not at all
    reason: str


class CurveSeen(Event, frozen=True, tag=True):
    """The training curve shows a known signature; ``response`` is what it calls for."""

    step: int
    signature: str
    response: str
    reason: str


class IncidentOpened(Event, frozen=True, tag=True):
    """One or more errors are treated as one incident from now on."""

    incident: int
    seats: tuple[int, ...]
    summary: str


class IncidentWidened(Event, frozen=True, tag=True):
    """A further loss during the recovery joined the open incident."""

    incident: int
    seats: tuple[int, ...]
    summary: str


class Diagnosed(Event, frozen=True, tag=True):
    """The fault that the errors are ascribed to."""

    incident: int
    fault: str  # a kind of the catalogue in faults.py
    culprits: tuple[int, ...]
    confidence: float
    evidence: tuple[str, ...]


class Decided(Event, frozen=True, tag=True):
    """The controller chose a rung; ``term`` is the membership that it leads to."""

    incident: int
    rung: Rung
    term: int
    reason: str


class PhaseBegan(Event, frozen=True, tag=True):
    """A recovery entered a phase; the phase before it ended at this instant."""

    incident: int
    phase: Phase
    at_mono_s: float


class TermBegan(Event, frozen=True, tag=True):
    """A membership: ``members[seat]`` is the process in that seat."""

    term: int
    members: tuple[int, ...]
    nodes: tuple[str, ...] = ()  # by seat, in a job on several nodes


class RestorePlanned(Event, frozen=True, tag=True):
    """Where the members of a term continue. ``donor`` is None when nobody needs a transfer."""

    term: int
    step: int  # last closed step, -1 before the first
    donor: int | None
    receivers: tuple[int, ...]
    outvoted: tuple[int, ...]
    reason: str


class SeatStalled(Event, frozen=True, tag=True):
    """A surviving or new occupant did no useful work between the two instants."""

    incident: int
    proc: int
    seat: int
    since_mono_s: float  # start of the lost attempt, or of the process
    until_mono_s: float  # the next attempt was opened


class IncidentClosed(Event, frozen=True, tag=True):
    """The recovery ended. ``first_step_s`` runs from the first sign to the close of the first new step."""

    incident: int
    outcome: str  # "recovered", "stopped"
    steps_lost: int
    first_step_s: float | None
    at_least: bool = False  # so many: whoever knew of later steps was lost


class NormalAgain(Event, frozen=True, tag=True):
    """Step time is back in its band of before the incident."""

    incident: int
    after_s: float  # since the first sign
    step_s: float
    band_s: tuple[float, float]


class CanaryPassed(Event, frozen=True, tag=True):
    """After a recovery training is what it was before: losses and gradient norms are in their bands again."""

    incident: int
    step: int
    back_after_steps: int  # since the recovery; 0: at once
    replicas: int  # seats whose digests were equal; 0: nothing was compared
    loss: float | None
    loss_band: tuple[float, float] | None  # None: there was nothing to compare with
    grad_norm: float | None
    norm_band: tuple[float, float] | None
    step_s: float
    step_band_s: tuple[float, float] | None


class CanaryFailed(Event, frozen=True, tag=True):
    """After a recovery the losses or gradient norms did not come back to where they were."""

    incident: int
    step: int
    steps: int  # that were watched
    loss: float | None
    loss_band: tuple[float, float] | None
    grad_norm: float | None
    norm_band: tuple[float, float] | None
    reason: str


class BatchesSplitFiner(Event, frozen=True, tag=True):
    """Memory was exhausted: from the next term on batches are split so many times finer than the script means to."""

    incident: int
    finer: int


class CorruptionSuspected(Event, frozen=True, tag=True):
    """State may hold wrong values: what is saved from now on is not trusted until this is cleared."""

    source: str  # "canary", "numerics", ...
    detail: str


class CorruptionCleared(Event, frozen=True, tag=True):
    """The suspicion is settled, or the state that it was about is given up: saves are trusted again."""

    source: str
    detail: str


class NodeBlamed(Event, frozen=True, tag=True):
    """A fault counts in the history of a node."""

    node: str  # of this run
    host: str  # the machine's name, under which its history is kept
    fault: str
    unit: str  # the device or seat; "": the node as a whole
    incident: int


class NodeQuarantined(Event, frozen=True, tag=True):
    """A node is kept out: no further seat goes to it. ``hours`` from now."""

    node: str
    host: str
    hours: float
    reason: str


class PersonNeeded(Event, frozen=True, tag=True):
    """Something that no rule may decide alone; the run goes on meanwhile."""

    about: str
    reason: str


# --- state that lasts -------------------------------------------------------------------------------------------


class StoreOpened(Event, frozen=True, tag=True):
    """The store answers, and this run holds its newest term: older writers are fenced."""

    store: str
    store_term: int
    generations: int
    newest_step: int | None


class RunResumed(Event, frozen=True, tag=True):
    """This run goes on where another one ended."""

    from_run: str
    store: str
    step: int | None  # None: nothing was committed, it begins with step 0


class SaveIntervalChosen(Event, frozen=True, tag=True):
    """How often state is saved from now on, and why."""

    interval_s: float
    reason: str


class SnapshotTaken(Event, frozen=True, tag=True):
    """Every seat copied its part of the state after this step into memory that outlives it."""

    save: int
    step: int
    image_bytes: int
    pause_s: float  # of the slowest seat


class CheckpointCommitted(Event, frozen=True, tag=True):
    """The snapshot is durable: it can be restored after the death of everything but the store."""

    save: int
    step: int
    generation: int
    written_bytes: int
    reused_bytes: int
    took_s: float  # since the snapshot was complete
    seconds: dict[str, float] = {}


class SaveFailed(Event, frozen=True, tag=True):
    """A save did not become durable. Training goes on; what was committed before is untouched."""

    step: int
    problem: str


class TierReached(Event, frozen=True, tag=True):
    """A snapshot reached a home beside the store. ``problem``: what is weaker than meant, "" when nothing is."""

    step: int
    tier: str
    written_bytes: int
    took_s: float
    problem: str = ""


class TierMissed(Event, frozen=True, tag=True):
    """A snapshot did not reach a home beside the store; the other homes are not concerned."""

    step: int
    tier: str
    problem: str


class CheckpointsRetired(Event, frozen=True, tag=True):
    """Generations that the retention gave up, and their bytes."""

    generations: tuple[int, ...]
    freed_bytes: int


class CheckpointVerified(Event, frozen=True, tag=True):
    """A restore drill read a generation as a restart would."""

    generation: int
    held: bool
    detail: str
    took_s: float


class StateLoaded(Event, frozen=True, tag=True):
    """Every seat of a new group holds the state after this step. ``passed_over`` says what was newer or nearer."""

    step: int
    source: str
    took_s: float
    passed_over: tuple[str, ...] = ()


class HookRan(Event, frozen=True, tag=True):
    """The command of ``--on-incident`` was started."""

    incident: int
    edge: str  # "opened" or "closed"
    problem: str  # empty when it started


# --- the gateway ----------------------------------------------------------------------------------------------------


class ReplicaQuarantined(Event, frozen=True, tag=True):
    """A replica of a gateway has answered otherwise than two others: it is asked no more."""

    replica: str
    reason: str


class ReplicaReadmitted(Event, frozen=True, tag=True):
    """Its quarantine is over."""

    replica: str
    reason: str


class DrillBegan(Event, frozen=True, tag=True):
    """An operator has a gateway break its own calls to a dependency, or serve from a lower level, for a while."""

    what: str
    for_s: float


class DrillEnded(Event, frozen=True, tag=True):
    """The drill of a gateway is over; what requests have met meanwhile."""

    what: str
    reason: str
    struck: int  # calls that it has delayed, or let fail
    requests: int
    errors: int
    degraded: int


AnyEvent = (
    RunStarted
    | PreflightDone
    | SignalReceived
    | RunEnded
    | NodeStarted
    | CoordinatorBegan
    | CoordinatorFollowed
    | CoordinatorLost
    | NodeAccepted
    | NodeGone
    | ProcessStarted
    | ProcessJoined
    | ProcessReady
    | ProcessSeated
    | ProcessFailed
    | ProcessExited
    | Account
    | StepClosed
    | TimerSummary
    | StragglerNamed
    | StragglerEased
    | NetworkSlow
    | NodeChecked
    | NodeUnwell
    | NodeWell
    | ErrorSeen
    | DeadlineChanged
    | StackCaptured
    | GroupsAbandoned
    | FaultInjected
    | StepHeld
    | StepReplayed
    | StepSkipped
    | SpotChecks
    | CurveSeen
    | IncidentOpened
    | IncidentWidened
    | Diagnosed
    | Decided
    | PhaseBegan
    | TermBegan
    | RestorePlanned
    | SeatStalled
    | IncidentClosed
    | NormalAgain
    | CanaryPassed
    | CanaryFailed
    | BatchesSplitFiner
    | CorruptionSuspected
    | CorruptionCleared
    | NodeBlamed
    | NodeQuarantined
    | PersonNeeded
    | StoreOpened
    | RunResumed
    | SaveIntervalChosen
    | SnapshotTaken
    | CheckpointCommitted
    | SaveFailed
    | TierReached
    | TierMissed
    | CheckpointsRetired
    | CheckpointVerified
    | StateLoaded
    | HookRan
    | ReplicaQuarantined
    | ReplicaReadmitted
    | DrillBegan
    | DrillEnded
)


class Stamp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The coordinator's mark on a record that it has every node write: the same mark is the same record."""

    epoch: int  # of its leadership, 1.., growing by one with every takeover
    seq: int  # 0.. in its epoch, without gaps: a node that lacks a number was out of reach
    node: str  # on which it ran
    at_mono_s: float  # when it was decided, by that node's clock


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of the journal: who wrote it, when, under which term, and the event."""

    seq: int  # 0.. in this journal, without gaps
    wall_s: float
    mono_s: float
    run: str
    node: str
    term: int
    event: AnyEvent
    stamp: Stamp | None = None  # None: this node saw it itself, or the job has one node
