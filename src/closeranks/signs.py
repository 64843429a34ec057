"""Signs of life: what a worker shows of itself, as values. Pure; the page that carries them is in vitals.py."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

SAME_CLOCK: Final[Mapping[int, int]] = {}  # by process, what its clock is behind: nothing


class Doing(IntEnum):
    """What the training thread is in the middle of; decides which deadline applies."""

    STARTING = 0  # from exec to the first attempt: imports, building, compiling
    WAITING = 1  # for the supervisor: a seat, a plan, leave to go
    BETWEEN = 2  # in steps(), between two blocks
    FORWARD = 3  # in the block, before the first collective of backward
    BACKWARD = 4  # in the block, after it
    APPLYING = 5  # the optimizer has begun
    SECTION = 6  # a labelled section (evaluation, saving)
    RECOVERING = 7  # own work in a recovery: it leaves its block, takes its seat, drops old connections
    LEAVING = 8  # after the last step
    MEETING = 9  # for the other members: amid a recovery, to be connected with them or for their part of a transfer
    RESTORING = 10  # own work in a recovery: it gives or takes over state, and verifies it


class StepMark(NamedTuple):
    """One closed step of one process. ``loss`` is NaN when none was reported; ``grad_norm`` is the newest reported."""

    step: int
    attempt: int
    opened_ns: int
    closed_ns: int
    loss: float
    own_ns: int = 0  # before the last collective, without waits for others; 0: unknown
    grad_norm: float = math.nan


class Spent(NamedTuple):
    """Seconds by named operation, of all the steps that a process has closed since it started. Both only grow."""

    steps: int  # that it closed; 0: what it spent is not known
    by_operation_s: Mapping[str, float]


class Reading(NamedTuple):
    """A consistent enough look at a page: each field is valid, the set may straddle one move."""

    moved_ns: int
    doing: Doing
    term: int
    step: int
    attempt: int
    closed_step: int
    entered: int
    returned: int
    operation: int
    operation_bytes: int
    section_hash: int
    own_ns: int
    loss: float
    grad_norm: float
    rehearsed_ns: int = 0  # duration of the last rehearsal step; 0: there was none
    sections_ended: int = 0  # so far; of the last one:
    ended_hash: int = 0
    ended_ns: int = 0  # how long it took


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of those that are finite; None if there are none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else None
