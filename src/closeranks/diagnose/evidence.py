"""What speaks for a fault, whatever it comes from: a line of a log, a kernel's code, a recording, a record."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec


class Source(StrEnum):
    """Who says it. Two sources that agree are worth more than one that repeats itself."""

    LOG = "log"  # what a process printed
    KERNEL = "kernel log"
    LAUNCHER = "launcher"  # a launcher or scheduler about the processes it started
    RECORDER = "flight recorder"  # a recording of collectives
    JOURNAL = "journal"  # records of a run of ours, vitals among them
    TELEMETRY = "telemetry"
    HISTORY = "history"  # what is remembered of a node from earlier runs


class Standing(IntEnum):
    """How near to the cause the words are; the lower, the nearer."""

    DEVICE = 1  # the kernel or the device itself names the fault
    SPECIFIC = 2  # the process names the fault in its own words
    GENERAL = 3  # an error of its own that names no fault
    ENDING = 4  # how a process ended: exit codes and signals mislead
    SYMPTOM = 5  # what many faults look like from elsewhere
    VICTIM = 6  # said by one who lost a peer: speaks against nobody but that peer
    CONTEXT = 7  # speaks for no fault


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the words stand. Line 0: the source has no lines."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        """``logs/p3.err:41``, as editors open it."""
        return f"{self.file}:{self.line}" if self.line else self.file


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Whom it is about; what is not known is None or empty."""

    rank: int | None = None
    node: str = ""
    device: str = ""  # a bus address or a device's number, as its source spells it

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return self.rank is not None or bool(self.node or self.device)

    def __str__(self) -> str:
        """``rank 3, node node7, device 0000:5e:00``."""
        said = [f"rank {self.rank}"] if self.rank is not None else []
        said += [f"node {self.node}"] if self.node else []
        said += [f"device {self.device}"] if self.device else []
        return ", ".join(said)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was said, how near to the cause it is, and how much it proves on its own."""

    source: Source
    rule: str  # which rule, code or check understood it
    text: str  # the words themselves, cleaned and bounded
    place: Place
    standing: Standing
    fault: str = ""  # a name of the catalogue; empty: it speaks for none
    weight: float = 0.0  # the confidence that it would earn alone, 0..1
    unit: Unit = Unit()
    at_s: float | None = None  # seconds since 1970, where the source has a clock
    order: int = 0  # the place in its source, for what has no clock
    count: int = 1  # lines that said the same of the same unit
    bursts: int = 1  # of them, groups that a pause separates
    sequence: int | None = None  # the number of the collective that it speaks of
    code: int | None = None  # an exit code, a signal as 128 + n, or an accelerator's code
    mutual: bool = False  # ranks disagree, and the speaker need not be the one who is wrong
    points: bool = False  # the unit is not who says it, but whom it names as missing
    peer: str = ""  # whom a victim lost
    advice: str = ""  # what the source itself asks for; better than the catalogue's
    where: str = ""  # the line of the user's program, ``train.py:31``
    excludes: tuple[str, ...] = ()  # faults that it speaks against
    went_on: bool = False  # the process went on working afterwards: it was handled
    dated: bool = True  # False: ``at_s`` is the time of a line above, and this may have been said much later
    ends: tuple[str, ...] = ()  # rules of whose sightings of the same unit or peer it says that they have passed
    over: bool = False  # it has passed: its source says so itself
    over_s: float | None = None  # when, where the source has a clock
