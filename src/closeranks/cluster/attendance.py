"""Who is there: the nodes that a coordinator knows, and what became of those that fell silent."""

from __future__ import annotations

from dataclasses import dataclass, field

from closeranks.decide.leases import NEVER_S
from closeranks.nodes import words
from closeranks.nodes.link import Connection
from closeranks.nodes.probes import Probed


@dataclass(slots=True, kw_only=True, eq=False)
class Attendee:
    """One supervisor process, from the moment it is known of until it is certain that it can act no more."""

    node: str
    boot: str  # "": nobody knows which process it is
    introduction: words.Introduction | None = None
    connection: Connection | None = None
    report: words.Report | None = None
    compared: bool = False  # what its first process said of itself, with what those of the group did
    admitted: bool = False  # the controller was told of it
    silent: bool = False  # the controller was told that it is out of reach
    follows_s: float | None = None  # when its first report to this leader came: since then it follows nobody else
    granted_s: float = 0.0  # when a grant was last sent to it, or it began to follow
    grants_s: dict[int, float] = field(default_factory=dict)  # by beat: when its grant was sent, newest ones
    acknowledged_s: float = NEVER_S  # when the newest grant was sent that it has received
    gone_s: float | None = None  # since when it has not been heard
    succeeded: bool = False  # a later process of its node wants to take part
    certain: str = ""  # why it can never act again
    missing: str = ""  # what is known of its absence
    hung_up: bool = False  # a connection of its was ended in order, as by the end of its process
    vigil: Connection | None = None  # an idle connection, whose end tells that of the process
    opinions: dict[str, Probed] = field(default_factory=dict)  # of second paths: whose, and what was found

    @property
    def heard(self) -> bool:
        """Whether it can be talked to."""
        return self.connection is not None and self.gone_s is None

    def part(self, reason: str) -> None:
        """Cut what connects us; nothing of it is heard any more, not even its end."""
        for connection in (self.connection, self.vigil):
            if connection is not None:
                connection.abort(reason)
        self.connection = self.vigil = None

    def send(self, word: words.FromCoordinator) -> None:
        """Say it, if there is a connection."""
        if self.connection is not None:
            self.connection.send(word)

    def send_frames(self, frames: bytes) -> None:
        """Say what was encoded for several nodes."""
        if self.connection is not None:
            self.connection.send_frames(frames)
