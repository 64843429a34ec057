"""What a node's supervisor and the coordinator say to each other, once both have proved that they hold the token.

Frames as in ``frames.py``. The coordinator's words carry its epoch once, in ``Welcome``: a connection belongs to one
epoch for its whole life. Facts and decisions are those of ``decide/protocol.py``.
"""

from __future__ import annotations

import msgspec

from closeranks.decide.protocol import Decision, Fact, KnownProc, ProcEnded
from closeranks.events import AnyEvent, Stamp
from closeranks.signs import Reading


class _Word(msgspec.Struct, frozen=True, kw_only=True, tag_field="word", forbid_unknown_fields=True):
    pass


class Address(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# --- node to coordinator ------------------------------------------------------------------------------------------


class Introduction(_Word, frozen=True, tag=True):
    """The first word of a connection."""

    run: str
    node: str  # "n<rank>"
    boot: str  # of this supervisor
    slots: int  # workers that it can hold
    host: str  # under which other nodes reach it
    probe_port: int  # where it answers probes
    domains: dict[str, str]  # level to name, e.g. {"rack": "r7"}
    hostname: str
    common: dict[str, str] = {}  # what has to be the same on all nodes: name to value


class Report(_Word, frozen=True, tag=True):
    """Everything that a new coordinator has to know of this node."""

    procs: tuple[KnownProc, ...]
    ended: tuple[ProcEnded, ...]  # the last that ended here, so that an end seen by nobody is not lost
    closed_step: int  # newest step closed by all seats of this node, -1: none
    closed_everywhere: int = -1  # newest step of which this node has heard that all seats closed it
    memo: bytes = b""  # the newest of any leader, see Memo
    memo_epoch: int = 0
    memo_seq: int = 0
    failed: str = ""  # this node cannot take workers: what its preflight found
    saved_step: int | None = None  # newest that a restart of the group could go on after, as this node knows


class SeatSign(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Vitals of one seat. Times in the reading are CLOCK_MONOTONIC of its node."""

    proc: int
    seat: int
    asked: bool  # it was told to end
    reading: Reading


class ClosedHere(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A step that every seat of this node has closed."""

    step: int
    duration_s: float  # from the first open to the last close here
    loss: float | None = None  # mean of the seats here that reported a finite one
    grad_norm: float | None = None
    own_s: dict[int, float] = {}  # by process
    period_s: float = 0.0  # since the step before was closed here; 0: unknown
    closed_ns: int = 0  # CLOCK_MONOTONIC of the node; 0: unknown


class Beat(_Word, frozen=True, tag=True):
    """A heartbeat and a summary of vitals. Answered by Granted at once."""

    number: int
    sent_ns: int  # CLOCK_MONOTONIC of the node
    granted: int = 0  # newest beat whose grant has arrived
    signs: tuple[SeatSign, ...] = ()
    closed: tuple[ClosedHere, ...] = ()  # since the last beat
    open_step: int = 0  # highest that a seat here has opened or is about to
    quiet_s: float = 0.0  # since a process here printed something: the only sign of scripts without the library
    spent: msgspec.Raw = msgspec.Raw(b"\x80")  # in named operations, see cluster/sections.py


class Heard(_Word, frozen=True, tag=True):
    """A fact of this node."""

    fact: Fact


class TermStoreOpened(_Word, frozen=True, tag=True):
    """Answer to OpenStore; with a problem there is no store."""

    term: int
    address: Address
    problem: str = ""


class Reached(_Word, frozen=True, tag=True):
    """Answer to Reach: whether a connection to the address came about."""

    nonce: int
    problem: str = ""


class Probed(_Word, frozen=True, tag=True):
    """Answer to Probe: see nodes/probes.py for the findings."""

    nonce: int
    finding: str
    detail: str = ""


class Confirmed(_Word, frozen=True, tag=True):
    """Answer to Confirm: what a question to the process and a look at it gave."""

    proc: int
    answered: bool
    busy: bool
    routine: bool = False


class SeatFacts(_Word, frozen=True, tag=True):
    """What preflight compares, of one process that joined."""

    proc: int
    seat: int | None
    facts: dict[str, str]


class ToSavers(_Word, frozen=True, tag=True):
    """Pass this on to the saver of a node, or of every node, the sender's included."""

    body: bytes  # see cluster/saving_words.py
    to: str = ""  # a node; "": all of them


class Hopeless(_Word, frozen=True, tag=True):
    """The job cannot go on, for a reason that no other node could do anything about."""

    reason: str
    exit_code: int


class Farewell(_Word, frozen=True, tag=True):
    """This supervisor ends; its workers have ended."""

    reason: str


FromNode = (
    Introduction
    | Report
    | Beat
    | Heard
    | TermStoreOpened
    | Reached
    | Probed
    | Confirmed
    | SeatFacts
    | ToSavers
    | Hopeless
    | Farewell
)


# --- coordinator to node ------------------------------------------------------------------------------------------


class Welcome(_Word, frozen=True, tag=True):
    """The node is accepted. It answers with a Report, and beats from now on."""

    epoch: int
    leader: str  # its node
    beat_s: float  # from one heartbeat of the node to its next
    term: int  # newest of the run: what belongs to an older one is stale
    places: tuple[str, ...] = ()  # node by seat under that term


class TurnedAway(_Word, frozen=True, tag=True):
    """The node is not accepted; ``final``: it must not try again."""

    reason: str
    final: bool


class ReportAgain(_Word, frozen=True, tag=True):
    """The node was silent for a while: how do things stand there?"""


class Granted(_Word, frozen=True, tag=True):
    """The beat was heard: act until the moment it was sent plus ``lease_s``."""

    number: int
    lease_s: float
    closed_step: int = -1  # newest that is closed everywhere: what a later leader may not find anybody to ask for


class Do(_Word, frozen=True, tag=True):
    """Carry out a decision, as far as it concerns this node's processes."""

    decision: Decision
    store: Address | None = None  # where the members of StartGroup and BeginTerm meet
    places: tuple[str, ...] = ()  # and their nodes, by seat


class Notes(_Word, frozen=True, tag=True):
    """Write these down, in their order: a term of a large job has one for every seat."""

    events: tuple[AnyEvent, ...]
    stamp: Stamp  # of the first; the sequence numbers of the others follow on it


class OpenStore(_Word, frozen=True, tag=True):
    """Open the rendezvous store of this term here."""

    term: int


class Reach(_Word, frozen=True, tag=True):
    """Try to connect to this address."""

    nonce: int
    address: Address


class Probe(_Word, frozen=True, tag=True):
    """Look whether that node's supervisor answers you."""

    nonce: int
    node: str
    boot: str
    address: Address


class Confirm(_Word, frozen=True, tag=True):
    """Ask that process and look at it; ``routine``: nothing is held against it."""

    proc: int
    routine: bool = False


class StopAt(_Word, frozen=True, tag=True):
    """An orderly stop: every seat leaves its loop once this step is closed."""

    step: int


class Memo(_Word, frozen=True, tag=True):
    """Keep this for the next leader: budgets, and whatever cannot be seen from outside. The newest wins."""

    seq: int
    memo: bytes


class Dismissed(_Word, frozen=True, tag=True):
    """Every process of this node was replaced while it was out of reach: end them; the node is welcome as a spare."""

    procs: tuple[int, ...]


class FromSaver(_Word, frozen=True, tag=True):
    """What the saver of a node said; see ToSavers."""

    node: str
    body: bytes


class StepClosedEverywhere(_Word, frozen=True, tag=True):
    """To the node of seat 0: every seat closed the step."""

    step: int
    period_s: float  # since the step before was closed, as of the slowest node; 0: unknown


class Committer(_Word, frozen=True, tag=True):
    """The run ends: this supervisor commits its last state, and answers probes until that is done."""

    node: str
    boot: str
    address: Address | None  # None: it is gone


FromCoordinator = (
    Welcome
    | TurnedAway
    | ReportAgain
    | Granted
    | Do
    | Notes
    | StopAt
    | OpenStore
    | Reach
    | Probe
    | Confirm
    | Memo
    | Dismissed
    | FromSaver
    | StepClosedEverywhere
    | Committer
)
