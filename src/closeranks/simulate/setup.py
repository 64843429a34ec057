"""What a virtual run is, but for its faults."""

from __future__ import annotations

import math

import msgspec

from closeranks.decide import saving
from closeranks.decide.save_interval import EverySeconds, EverySteps
from closeranks.decide.state import Settings
from closeranks.detect.progress import Bounds
from closeranks.simulate.saves import Tier
from closeranks.simulate.timing import Timing


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a virtual run but its faults. Either ``until`` or ``horizon_s`` ends it."""

    settings: Settings
    timing: Timing = Timing()
    bounds: Bounds = Bounds()
    step_s: float = 1.0
    until: int = 0  # steps; 0: no end
    horizon_s: float = math.inf
    replicated: bool = True  # False: the state of a lost seat has no second copy
    tiers: tuple[Tier, ...] = ()
    every: EverySteps | EverySeconds | None = None  # None: the save controller chooses
    saving: saving.Settings = saving.Settings()
    pause_s: float = 0.0  # that training stands still for a save
    distrust_s: float = 0.0  # state is not trusted that was saved so shortly before corruption was found
    nodes: int = 0  # 0: processes need none
    spare_nodes: int = 0
    every_step: bool = False  # tell the controller of each step: for journals and short runs
    rpo_s: float = 0.0  # promised; 0: nothing was
    rto_s: float = 0.0
