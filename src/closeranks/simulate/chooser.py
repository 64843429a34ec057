"""The real save controller, asked how often to save: it sees two saves and every loss of the virtual run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from closeranks.decide import saving
from closeranks.decide.save_interval import SETTLING_S
from closeranks.decide.saving_protocol import (
    IntervalChosen,
    LossSeen,
    SaveCommitted,
    SaveDecision,
    SaveFact,
    SaveFreed,
    SavingBegan,
    SnapshotTaken,
    StepPassed,
    TakeSnapshot,
)

_ROUNDS = 64  # steps until a snapshot is asked for, at most


class SaveCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a save of the virtual job takes."""

    pause_s: float
    durable_s: float  # from the snapshot to the commit
    step_s: float


class Chooser:
    """Chooses an interval as ``closeranks run`` would; ``tell`` hears of every choice."""

    def __init__(self, settings: saving.Settings, cost: SaveCost, tell: Callable[[IntervalChosen], None]) -> None:
        self._state = saving.initial(settings)
        self._cost = cost
        self._tell = tell
        self._step = -1
        self._now_s = 0.0

    @property
    def interval_s(self) -> float:
        """The interval in force."""
        choice = self._state.choice
        return SETTLING_S if choice is None else choice.interval_s

    @property
    def fresh(self) -> bool:
        """Whether it has not seen training begin."""
        return self._state.began_s is None

    def begin(self, now_s: float) -> None:
        """Training begins: the first save shows what one takes, the second one that it was not the exception."""
        self._now_s = now_s
        self._feed(SavingBegan(step=-1, durable=False))
        for _ in range(2):
            self._save()
            self._step += max(1, round(SETTLING_S / self._cost.step_s))
            self._now_s += SETTLING_S

    def lost(self, now_s: float) -> None:
        """A loss that had to be mended from a save."""
        self._now_s = max(self._now_s, now_s)
        self._feed(LossSeen(cold=True))

    def _save(self) -> None:
        for _ in range(_ROUNDS):
            self._step += 1
            self._now_s += self._cost.step_s
            asked = self._feed(StepPassed(step=self._step, period_s=self._cost.step_s))
            if asked is not None:
                break
        else:
            raise AssertionError(f"no snapshot was asked for within {_ROUNDS} steps of {self._cost.step_s:g} s")
        taken = max(asked.step, self._step)
        self._step, self._now_s = taken, self._now_s + self._cost.pause_s
        self._feed(SnapshotTaken(step=taken, pause_s=self._cost.pause_s))
        self._now_s += self._cost.durable_s
        self._feed(SaveCommitted(step=taken))
        self._feed(SaveFreed(step=taken))

    def _feed(self, fact: SaveFact) -> TakeSnapshot | None:
        self._state, decisions = saving.step(self._state, fact, self._now_s)
        return self._answer(decisions)

    def _answer(self, decisions: tuple[SaveDecision, ...]) -> TakeSnapshot | None:
        asked = None
        for decision in decisions:
            if isinstance(decision, IntervalChosen):
                self._tell(decision)
            elif isinstance(decision, TakeSnapshot):
                asked = decision
        return asked
