"""The pure cores with their state inside: the controller, and the detector of lost progress."""

from __future__ import annotations

from collections.abc import Mapping

from closeranks.decide import controller
from closeranks.decide.budgets import Limits
from closeranks.decide.protocol import Decision, Fact
from closeranks.decide.state import Deadlines, Settings
from closeranks.run.options import RunOptions
from closeranks.vitals import Reading


def settings_of(options: RunOptions) -> Settings:
    """What the command line decides for the controller."""
    return Settings(
        seats=options.seats,
        spares=options.spares,
        limits=Limits(
            start_restarts=min(Limits().start_restarts, options.max_restarts),
            cold_restarts=options.max_restarts,
        ),
        deadlines=Deadlines(join_s=options.join_timeout_s),
    )


class Brain:
    """The controller of one run."""

    def __init__(self, options: RunOptions) -> None:
        self._state = controller.initial(settings_of(options))

    def step(self, fact: Fact, now_s: float) -> tuple[Decision, ...]:
        """Take one fact."""
        self._state, decisions = controller.step(self._state, fact, now_s)
        return decisions


class ProgressDetector:
    """Nothing yet."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options

    def look(self, readings: Mapping[int, Reading], now_s: float) -> tuple[Fact, ...]:
        return ()

    def forget(self) -> None:
        return
