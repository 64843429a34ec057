"""What the data path and the policies say to each other. Pure; times are seconds of one monotonic clock."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

import msgspec

NEVER_S: Final = float("inf")


class Outcome(StrEnum):
    """How one attempt at one replica ended, and whose doing it was."""

    __hash__ = str.__hash__  # an Enum's own is written in Python, and every request looks these up

    OK = "ok"
    CLIENT_FAULT = "client fault"  # 4xx: the request's own
    BUSY = "busy"  # 429, 503: back-pressure; the replica is well
    BROKEN = "broken"  # 5xx, a cut, bad bytes, an error frame, a missing end: the replica's
    SLOW = "slow"  # nothing came for too long
    UNREACHED = "unreached"  # no connection: nothing was begun
    GONE = "gone"  # the client left or its deadline passed: says nothing about the replica


class Kind(StrEnum):
    """What an attempt is made for; all of them draw on one budget, except the first."""

    __hash__ = str.__hash__  # see Outcome

    FIRST = "first"
    RETRY = "retry"
    HEDGE = "hedge"
    RESUME = "resume"  # of a stream that the client has seen a part of
    PROBE = "probe"
    DOUBLE = "double"  # of a request that is executed twice to compare


class Priority(IntEnum):
    """Lower is served first."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What the policies know of a request."""

    number: int  # of the gateway process, growing
    arrived_s: float
    deadline_s: float = NEVER_S  # absolute
    tenant: str = ""
    premium: bool = False
    priority: Priority = Priority.STANDARD
    session: str = ""  # what its replica is chosen by, if anything; empty: any replica
    model: str = ""
    stream: bool = False
    repeatable: bool = True  # doing it twice does no harm: an answer can be asked for again
    comparable: bool = False  # it has one right answer, so that two replicas can be compared
    cost: float = 1.0  # of the work, in the units of a replica's capacity
    laddered: bool = False  # there is less that it could be served


class Placed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The replica that is to answer."""

    replica: str
    reason: str = ""


class Nowhere(msgspec.Struct, frozen=True, kw_only=True):
    """No replica may be asked now."""

    reason: str
    retry_after_s: float
    status: int = 503


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """The request may begin now."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """The request is queued; ``Traffic.done`` of another will name it, or it is shed at ``until_s``."""

    until_s: float


class Shed(msgspec.Struct, frozen=True, kw_only=True):
    """The request is turned away, early and cheaply."""

    status: int  # 429: the caller's own limit; 503: ours
    retry_after_s: float
    reason: str


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """The work may be tried again after a pause."""

    after_s: float


class Enough(msgspec.Struct, frozen=True, kw_only=True):
    """The work may not be tried again."""

    reason: str
    retry_after_s: float | None = None  # what the client may be told
