"""Who is there: the nodes that a coordinator knows, and what became of those that fell silent."""

from __future__ import annotations

from dataclasses import dataclass, field

from closeranks.nodes import words
from closeranks.nodes.link import Connection
from closeranks.nodes.probes import Probed


@dataclass(slots=True, kw_only=True, eq=False)
class Attendee:
    """One supervisor process, from the moment it is known of until it is certain that it can act no more."""

    node: str
    boot: str  # "": known from the record alone, it has not introduced itself to this leader
    introduction: words.Introduction | None = None
    connection: Connection | None = None
    report: words.Report | None = None
    admitted: bool = False  # the controller was told of it
    silent: bool = False  # the controller was told that it is out of reach
    granted_s: float = 0.0  # when a grant was last given to it, by us or, for all we know, by the leader before
    gone_s: float | None = None  # since when it has not been heard
    certain: str = ""  # why it can never act again
    missing: str = ""  # what is known of its absence
    hung_up: bool = False  # its last connection was ended in order, or by the end of its process
    opinions: dict[str, Probed] = field(default_factory=dict)  # of second paths: whose, and what was found

    @property
    def heard(self) -> bool:
        """Whether it can be talked to."""
        return self.connection is not None and self.gone_s is None

    def send(self, word: words.FromCoordinator) -> None:
        """Say it, if there is a connection."""
        if self.connection is not None:
            self.connection.send(word)
