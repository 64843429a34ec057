"""The savers of a job: one on every node, one of which leads. On one node there is one, and it leads itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from closeranks.cluster.saving_words import FromLead, ToLead
from closeranks.nodes.probes import Life


class Role(StrEnum):
    """What the saver of a node does."""

    LEAD = "lead"  # decides, and commits to the store
    FOLLOWER = "follower"  # saves what the seats of its node hold
    IDLE = "idle"  # its node has no seats


def role_of(node: str, places: Sequence[str]) -> Role:
    """The role of a node when seat k sits on ``places[k]``: the node of seat 0 leads."""
    if not places or node not in places:
        return Role.IDLE
    return Role.LEAD if node == places[0] else Role.FOLLOWER


class Hearers(NamedTuple):
    """Whom a circle tells."""

    from_lead: Callable[[FromLead], None]
    to_lead: Callable[[str, ToLead], None]  # with the node that said it; only where the lead is
    seated: Callable[[], None]  # role or nodes may have changed


class Circle(Protocol):
    """How a saver reaches the others. Nothing here waits; a word that cannot be sent is lost."""

    @property
    def several(self) -> bool:
        """Whether there is more than one node."""

    @property
    def node(self) -> str:
        """The name of this node."""

    @property
    def role(self) -> Role:
        """Of this node."""

    @property
    def nodes(self) -> frozenset[str]:
        """Those with seats."""

    @property
    def led(self) -> bool:
        """Whether the role is certain: a node that is cut off may have been replaced, and must claim nothing."""

    def attach(self, hearers: Hearers) -> None:
        """Whom to tell from now on."""

    def tell_all(self, word: FromLead) -> None:
        """As the lead: to every node, this one included."""

    def tell_lead(self, word: ToLead) -> None:
        """To the lead, which may be this node."""

    def end_run(self, reason: str, exit_code: int = 1) -> None:
        """The job cannot go on, on any node."""

    async def life_of_lead(self) -> Life:
        """At the end of the run, whether the supervisor that commits its last state still runs."""


class Alone:
    """The circle of one node: what is said is heard at once."""

    several = False
    node = ""
    role = Role.LEAD
    led = True
    nodes = frozenset({""})

    def __init__(self, fail: Callable[[str, int], None]) -> None:
        """``fail(reason, exit_code)`` ends the run."""
        self._fail = fail
        self._hearers: Hearers | None = None

    def attach(self, hearers: Hearers) -> None:
        """See Circle."""
        self._hearers = hearers

    def tell_all(self, word: FromLead) -> None:
        """See Circle."""
        if self._hearers is not None:
            self._hearers.from_lead(word)

    def tell_lead(self, word: ToLead) -> None:
        """See Circle."""
        if self._hearers is not None:
            self._hearers.to_lead(self.node, word)

    def end_run(self, reason: str, exit_code: int = 1) -> None:
        """See Circle."""
        self._fail(reason, exit_code)

    async def life_of_lead(self) -> Life:
        """See Circle."""
        return Life.ALIVE
