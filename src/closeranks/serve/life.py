"""What the policies remember of a request until it is done. Pure."""

from __future__ import annotations

import msgspec

from closeranks.serve.policies.avoidance import Asked
from closeranks.serve.policies.breaker import Ticket
from closeranks.serve.policies.ladder import Course
from closeranks.serve.policies.retry_budget import Permit
from closeranks.serve.words import Outcome


class Life(msgspec.Struct):
    """One request. It begins when it is admitted, or with its first attempt where nobody admits it."""

    counted: bool = True  # by the admission; what goes on after its gateway has died never asked for it
    begun: bool = False
    course: Course | None = None
    began_s: float = 0.0
    first_byte_s: float | None = None
    sent: bool = False
    last: Outcome | None = None
    permit: Permit | None = None
    hedged: str = ""  # the replica that was asked, too; once a request
    hedge: Permit | None = None
    tickets: dict[str, Ticket] = {}
    retry_after_s: float | None = None
    asked: dict[str, Asked] = {}  # of dependencies, by the replica that may ask them
    less: bool = False  # it was answered without one of them
    beside: frozenset[str] = frozenset()  # replicas that execute it for a comparison
