"""What a supervisor and the candidate of its own node say to each other, over a socketpair."""

from __future__ import annotations

import msgspec

from closeranks.nodes.words import Address


class _Aside(msgspec.Struct, frozen=True, kw_only=True, tag_field="aside", forbid_unknown_fields=True):
    pass


class Standing(_Aside, frozen=True, tag=True):
    """From the supervisor: whether it hears a leader. A candidate of a node that does never contends."""

    follows: int  # epoch of the leader that it hears, 0: none


class Begin(_Aside, frozen=True, tag=True):
    """From the supervisor, first: seek the lead. A process waits for it from its start, so that a loss costs no start.

    ``before``: candidates that this supervisor had, all of which have ended.
    """

    supervisor: str  # its boot
    before: int
    probe_port: int  # where the supervisor answers probes
    broken: int = 0  # of those, how many broke within the last minute
    seeks: bool = True  # False: as after Retire


class Retire(_Aside, frozen=True, tag=True):
    """From the supervisor: this node is to leave. Give the lead up, seek it no more, and go on saying who leads."""


class Ending(_Aside, frozen=True, tag=True):
    """From the supervisor: the run is over here. A candidate that leads waits for the other nodes first."""


class LeaderSeen(_Aside, frozen=True, tag=True):
    """From the candidate: who leads, and where."""

    epoch: int
    node: str
    address: Address


class RunOver(_Aside, frozen=True, tag=True):
    """From the candidate: the record says that the run has ended."""

    outcome: str
    exit_code: int
    reason: str


class Aloud(_Aside, frozen=True, tag=True):
    """From the candidate: a line for the console."""

    line: str


class Unanswered(_Aside, frozen=True, tag=True):
    """From the candidate: why the authority has not answered for a while; empty: it answers again."""

    problem: str


class Broken(_Aside, frozen=True, tag=True):
    """From the candidate, last: it ends, and that is a defect or something it needs and lacks."""

    reason: str


FromSupervisor = Begin | Standing | Retire | Ending
FromCandidate = LeaderSeen | RunOver | Aloud | Unanswered | Broken
