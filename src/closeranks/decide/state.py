"""What the controller knows: settings, processes, the incident, and the one machine of lives and stages.

Values only; whatever changes them is in the files beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from closeranks.decide import canary, quarantine
from closeranks.decide.answers import Answers
from closeranks.decide.budgets import Ledger, Limits
from closeranks.decide.diagnosis import Signature
from closeranks.decide.pace import Pace
from closeranks.decide.protocol import ProcPaused
from closeranks.events import Phase, Rung


class Deadlines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the controller waits before it calls a phase failed."""

    poison_grace_s: float = 0.5  # for the exit or the stuck process that explains a failed collective
    isolate_s: float = 10.0  # until a process that was told to end has ended
    # A member may sit in a labelled section, such as a long save; the progress detector finds one that is stuck.
    pause_s: float = 900.0  # until an interrupted member has left its block
    ready_s: float = 600.0  # until a process started for a seat can be seated: it runs the whole set-up of the script
    regroup_s: float = 30.0  # until all members of a term are connected; ready_s more if one has to get ready first
    transfer_s: float = 120.0  # until all members hold the planned state
    resume_s: float = 30.0  # until all members have opened an attempt, after they were told to go on
    join_s: float = 600.0  # from the first join to the last
    # From the first member that answers at the end to the last; one may still copy its state for a save.
    confirm_s: float = 30.0
    plain_settle_s: float = 10.0  # a restarted script without the library counts as recovered after this
    first_nodes_s: float = 10.0  # from the beginning until other nodes may take the seats of the first ones
    nodes_s: float = 600.0  # from the beginning until enough nodes are there to start on


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user decides; everything else the controller decides itself."""

    seats: int
    spares: int = 0  # on every node that has seats; a node without keeps a spare warm in each of its slots
    nodes_needed: int = 0  # the group starts once so many are there; 0: a run of one node, which needs no name
    limits: Limits = Limits()
    deadlines: Deadlines = Deadlines()
    answers: Answers = {}  # that differ from the built-in ones, by fault
    quarantine: quarantine.Rules = quarantine.Rules()
    canary: canary.Rules = canary.Rules()
    host: str = ""  # of a run of one node: the machine's name
    tries_per_rung: int = 2  # newcomers that may be lost in one incident before the next rung is taken
    nodes_min: int = 0  # so few nodes may hold the job with fewer seats, if no other comes; 0: it keeps its size
    node_patience_s: float = 600.0  # seats without room wait so long for a node, survivors paused


class Life(StrEnum):
    """Where the run stands."""

    NEW = "new"
    ASSEMBLING = "assembling"  # the nodes to start on are awaited
    JOINING = "joining"  # a group was started and runs towards join
    REGROUPING = "regrouping"  # a term began, its members connect
    RESTORING = "restoring"  # the restore plan is out
    RUNNING = "running"  # the members build their model, train, or run a script of their own
    GATHERING = "gathering"  # lost processes end, survivors pause, newcomers get ready
    CLEARING = "clearing"  # all members end before the group starts again
    LEAVING = "leaving"  # the loop is over, members exit
    ENDED = "ended"


# Every transition that is possible; the controller refuses any other as a defect of its own.
NEXT: Mapping[Life, frozenset[Life]] = {
    Life.NEW: frozenset({Life.ASSEMBLING, Life.JOINING, Life.ENDED}),
    Life.ASSEMBLING: frozenset({Life.JOINING, Life.ENDED}),
    Life.JOINING: frozenset({Life.REGROUPING, Life.CLEARING, Life.ENDED}),
    Life.REGROUPING: frozenset({Life.RESTORING, Life.GATHERING, Life.CLEARING, Life.ENDED}),
    Life.RESTORING: frozenset({Life.RUNNING, Life.GATHERING, Life.CLEARING, Life.ENDED}),
    Life.RUNNING: frozenset({Life.GATHERING, Life.CLEARING, Life.LEAVING, Life.ENDED}),
    Life.GATHERING: frozenset({Life.REGROUPING, Life.CLEARING, Life.ENDED}),
    Life.CLEARING: frozenset({Life.JOINING, Life.ENDED}),
    Life.LEAVING: frozenset({Life.ENDED}),
    Life.ENDED: frozenset(),
}


class Stage(StrEnum):
    """Where a process stands."""

    STARTED = "started"
    JOINED = "joined"
    WARM = "warm"  # a newcomer or spare that can be seated
    SEATED = "seated"  # a term began with it
    REGROUPED = "regrouped"
    RESTORED = "restored"
    BUILDING = "building"  # told to go on under the first term of a group: on its way to the loop
    RESUMING = "resuming"  # told to go on after a recovery: about to open an attempt
    LOOPING = "looping"
    FINISHED = "finished"
    CONFIRMED = "confirmed"  # and still there when all others had finished, too
    INTERRUPTED = "interrupted"
    PAUSED = "paused"
    DOOMED = "doomed"  # isolated; only its end is awaited


TRAINING = frozenset({Stage.BUILDING, Stage.RESUMING, Stage.LOOPING})
THROUGH = frozenset({Stage.FINISHED, Stage.CONFIRMED})  # with the loop


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is there."""

    name: str
    slots: int  # seats that it can hold
    domains: Mapping[str, str] = {}
    host: str = ""  # the machine's name; "": it has no history
    silent: bool = False  # nothing reaches it now, what runs there may live
    leaving: int = 0  # the signal that told it to leave; 0: it stays
    let_go: bool = False  # it was told that it may
    unfit: bool = False  # it says itself that it should get nothing new

    @property
    def open(self) -> bool:
        """Whether seats and spares can be placed there now."""
        return not (self.silent or self.leaving)


class Proc(msgspec.Struct, frozen=True, kw_only=True):
    """A process that lives, or whose end is not yet certain."""

    proc: int
    node: str = ""
    stage: Stage
    since_s: float  # when it came to this stage
    seat: int | None = None  # None: a spare
    incarnation: int | None = None
    term: int  # the last term that began with it; before that, the one that it was started for
    filled_by: Rung | None = None  # the rung that put it into its seat; None: it is there since its group started
    replicated: bool = True
    settled: bool = True  # False: a newcomer that waits for its rank in the middle of its script
    holds_state: bool = False  # it was told to go on once: its state is the job's
    brought: ProcPaused | None = None  # since it was last told to go on
    groups: str = ""
    digest: str = ""
    restored_step: int = -1


class Poison(msgspec.Struct, frozen=True, kw_only=True):
    """A failed collective that is not explained yet."""

    at_s: float
    proc: int
    detail: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Trouble from its first sign to the first step after it."""

    number: int
    opened_s: float
    seats: tuple[int, ...]
    exit_code: int  # of the process that was lost first; 0: none ended by itself so far
    summary: str
    nodes: tuple[str, ...] = ()  # lost in it
    domains: tuple[str, ...] = ()  # failed in it
    phase: Phase = Phase.SEE
    rung: Rung = Rung.STOP
    failures: Mapping[Rung, int] = {}  # newcomers lost and attempts failed, by rung
    done_before: int = -1  # newest step closed everywhere when it opened
    unsure: bool = False  # it may have been a later one
    plan_step: int | None = None  # where the members went on; None: not yet decided
    finer_since: int | None = None  # the term under which memory was exhausted and batches were split finer
    not_before_s: float = 0.0  # its members wait so long before they meet again


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The processes since the last start from nothing."""

    joined_s: float | None = None  # first join
    looped: bool = False  # every seat reached its loop once
    newest_step: int = -1  # closed on every seat
    unsure: bool = False  # more may have been closed: of whom it could be asked, not all were there
    exited: Mapping[int, int] = {}  # seats whose process exited with success: the step it left its loop after, or -1
    term: int = 0  # the last one that began; 0: none yet
    plan_step: int = -1  # where its members go on
    loads: bool = False  # it begins with saved state
    trusted: bool = False  # and only with such that nothing speaks against


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Someone asked the run to stop."""

    signal: int


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How the run ended, for a second signal that wants it faster."""

    outcome: str
    exit_code: int
    reason: str
    now: bool


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    settings: Settings
    shrunk_to: int = 0  # seats of the group since it became smaller; 0: it has all of them
    ledger: Ledger
    pace: Pace
    life: Life = Life.NEW
    since_s: float = 0.0  # when this life began
    term: int = 0  # newest number given out
    next_proc: int = 1
    next_incident: int = 1
    procs: dict[int, Proc] = {}  # never changed in place; thousands are looked through from their end
    nodes: Mapping[str, Node] = {}  # those that are there; empty in a run of one node
    lost_nodes: Mapping[str, Node] = {}  # and not back
    turned_down: Mapping[str, str] = {}  # nodes that came and said themselves why they should get no work
    short_since_s: float | None = None  # since then seats have no room; None: all have
    places: tuple[str, ...] = ()  # node by seat, where it is or last was; empty in a run of one node
    incarnations: tuple[int, ...] = ()  # newest by seat
    library: bool = False  # some process called join, ever
    group: Group = Group()
    saved_step: int | None = None  # the newest that a restart of the group can go on after
    finer: int = 1  # batches are split so many times finer than the script means to
    finer_most: int = 1  # that every process can; 1: the script does not ask
    before_step: int | None = None  # saved state of this step or a later one did not work out
    suspicions: Mapping[str, str] = {}  # by who raised it: why the state may hold wrong values
    canary: canary.Canary = canary.Canary()
    register: quarantine.Register = quarantine.Register()
    barred: frozenset[str] = frozenset()  # nodes whose faults speak against them
    poison: Poison | None = None
    incident: Incident | None = None
    signatures: Mapping[Signature, int] = {}  # failures that name their place, with the term they were first seen in
    unhelped_step: int | None = None  # newest step when regrouping in place last ended an incident
    stop: Stop | None = None
    ending: Ending | None = None

    @property
    def suspicion(self) -> str:
        """Why the state may hold wrong values, so that no save of it is trusted; empty when nothing is suspected."""
        return next(iter(self.suspicions.values()), "")

    @property
    def last_choices(self) -> frozenset[str]:
        """Nodes that take seats only where no other has room."""
        return self.barred | {node.name for node in self.nodes.values() if node.unfit}

    @property
    def seats(self) -> int:
        """Of the group as it is now."""
        return self.shrunk_to or self.settings.seats

    @property
    def seats_each(self) -> int:
        """An equal share of the seats, for each of the nodes that are needed."""
        return -(-self.settings.seats // max(1, self.settings.nodes_needed))
