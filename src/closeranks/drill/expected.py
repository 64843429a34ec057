"""What is right in a cell of the drill matrix: the words in which it is written down. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from closeranks.drill.fault import Kind, Lasting, Moment
from closeranks.drill.nodes.faults import NodeKind
from closeranks.events import Rung


class Phase(StrEnum):
    """Parts of a worker's life."""

    START_UP = "start-up"
    FORWARD = "forward"
    COLLECTIVE = "collective"
    OPTIMIZER = "optimizer"
    SAVING = "saving"
    RECOVERING = "recovering"
    IDLE = "idle"


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What is right, and what is promised. Seconds count from the strike."""

    detect_s: float  # until anything says that something is wrong
    faults: tuple[str, ...] = ()  # names in the catalogue of which a diagnosis has to be one; (): none is asked for
    said: tuple[str, ...] = ()  # or words, one of which a warning that opens no incident has to contain
    culprit: bool = True  # the struck seat has to be named
    rungs: tuple[Rung, ...] = ()  # actions that are right; (): none may be taken; WAIT among them: none need be
    rpo_steps: int = 0  # at most so many closed steps are lost
    rto_s: float = 5.0  # until the first new step is closed
    exit_codes: tuple[int, ...] = (0,)
    maskable: bool = False  # it need not be seen where it changes nothing


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault and its model."""

    name: str
    kind: Kind | NodeKind | None  # None: nothing here can bring it about
    where: str  # what is struck: "process", "weight", "a failing call", ...
    phases: Mapping[Phase, Expected | str]
    lasting: Lasting = Lasting.TRANSIENT
    bits: int = 0  # of one element
    control: bool = False  # nothing is wrong: nothing may be done
    for_s: float = 3600.0
    percent: int = 0  # of the packets that are lost, where some are
    moments: Mapping[Phase, Moment] = {}  # where they are not the phase's own
    options: tuple[str, ...] = ()  # of closeranks run
    asks: tuple[str, ...] = ()  # of the small job, beyond what it does in all rows
    steps: int = 0  # that the run has to make; 0: as many as all others
    calm_steps: int = 0  # before the strike, beyond those of all others: a detector learns from them what is usual

    @property
    def model(self) -> str:
        """For example ``gradient, stuck, 1 bit``."""
        bits = f", {self.bits} bit{'s' if self.bits > 1 else ''}" if self.bits else ""
        return f"{self.where}, {self.lasting}{bits}"
