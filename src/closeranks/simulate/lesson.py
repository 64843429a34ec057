"""The smallest example: 100 units of training, a fault in three of a hundred time units, with checkpoints and without.

A fault costs its unit and returns to the last checkpoint, or to the beginning where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from closeranks.decide.save_interval import EverySteps
from closeranks.decide.state import Settings
from closeranks.simulate.policy import UNLIMITED
from closeranks.simulate.saves import Tier
from closeranks.simulate.setup import Setup
from closeranks.simulate.statistics import Estimate, estimate
from closeranks.simulate.strikes import Kind, Strike
from closeranks.simulate.timing import Timing
from closeranks.simulate.world import World

UNITS: Final = 100
EVERY: Final = 10
FAULT_CHANCE: Final = 0.03
_AT_ONCE: Final = Timing(
    detect_s=0, end_s=0, pause_s=0, start_s=0, ready_s=0, connect_s=0, transfer_s=0, load_s=0, resume_s=0
)
_JUST_BEFORE_S: Final = 1e-6  # a fault strikes so shortly before the end of its unit
_FAULTS: Final = 400  # drawn in one go, far more than a run meets


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train: what is expected, and what came out."""

    name: str
    expected_units: float
    simulated: Estimate
    faults: float


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """Both ways."""

    replicas: int
    rows: tuple[Row, ...]


def expected_units(units: int, every: int, chance: float) -> float:
    """Time units until ``units`` are done, with a checkpoint every so many; ``every = units`` is none.

    Source: runs of successes (Feller, An Introduction to Probability Theory, volume 1, XIII.7): a run of n without a
    fault takes ((1 - p)^-n - 1)/p trials on average.
    """
    return units / every * ((1 - chance) ** -every - 1) / chance


def lesson(seed: int, replicas: int, done: Callable[[int], None]) -> Lesson:
    """Both ways of training through the same faults, under the real controller."""
    rows = []
    for name, every in ((f"checkpoint every {EVERY} units", EVERY), ("no checkpoints", 0)):
        outcomes = []
        for number in range(replicas):
            outcomes.append(World(_setup(every), _faults(seed + number)).run())
            done(1)
        rows.append(
            Row(
                name=name,
                expected_units=expected_units(UNITS, every or UNITS, FAULT_CHANCE),
                simulated=estimate([outcome.wall_s for outcome in outcomes]),
                faults=sum(outcome.strikes for outcome in outcomes) / replicas,
            )
        )
    return Lesson(replicas=replicas, rows=tuple(rows))


def _setup(every: int) -> Setup:
    return Setup(
        settings=Settings(seats=1, limits=UNLIMITED),
        timing=_AT_ONCE,
        step_s=1.0,
        until=UNITS,
        replicated=False,
        tiers=(Tier(),) if every else (),
        every=EverySteps(steps=max(every, 1)),
    )


def _faults(seed: int) -> list[Strike]:
    rng = np.random.default_rng(seed)
    units = rng.geometric(FAULT_CHANCE, _FAULTS)
    times_s = np.cumsum(units - _JUST_BEFORE_S)
    return [Strike(at_s=at_s, kind=Kind.CRASH) for at_s in times_s.tolist()]
