"""Where the time of a virtual job went, and how it ended."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Part(StrEnum):
    """What a second of the job was. Each belongs to exactly one."""

    START_UP = "start-up"
    USEFUL = "useful steps"
    REPEATED = "repeated steps"
    SAVING = "pauses for saves"
    LOST = "lost attempts"
    DETECT = "until seen"
    RECOVER = "isolate, regroup, transfer"
    NO_NODES = "waiting for nodes"
    RESTART = "restart"
    LOAD = "load and warm up"


DOWN = (Part.LOST, Part.DETECT, Part.RECOVER, Part.NO_NODES, Part.RESTART, Part.LOAD)
"""What a failure takes beside the steps that are made again."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual run."""

    outcome: str
    reason: str
    wall_s: float
    steps: int  # closed, each counted once
    useful_s: float
    seconds: dict[Part, float]
    incidents: int
    strikes: int  # faults that hit something
    rungs: dict[str, int]
    steps_lost: int
    worst_loss_s: float  # of training, by one failure
    worst_return_s: float  # from a loss to the next attempt
    facts: int  # what the controller was told
    events: int  # facts, strikes and whatever else moved the world
    problems: tuple[str, ...] = ()

    @property
    def goodput(self) -> float:
        """Useful time over wall time."""
        return self.useful_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def down_s(self) -> float:
        """Time in which nothing was trained because of failures."""
        return sum(self.seconds.get(part, 0.0) for part in DOWN)


class Book:
    """Adds up seconds by part; whoever moves the clock says what the time was."""

    def __init__(self) -> None:
        self.seconds: dict[Part, float] = {}

    def add(self, part: Part, seconds: float) -> None:
        """So many seconds more."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds
