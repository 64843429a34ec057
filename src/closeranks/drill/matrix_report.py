"""All cells of a drill matrix together: the table, the sums, the exit status. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from closeranks.drill.matrix import CELLS, Cell
from closeranks.drill.score import Effect, Mark, Score
from closeranks.drill.verdict import Outcome


class State(StrEnum):
    """Of one cell."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "unknown"  # the fault never struck, or there was nothing to compare with
    NOT_RUN = "not run"
    NOT_APPLICABLE = "not applicable"


SYMBOLS: Final = {
    State.RIGHT: "+",
    State.WRONG: "X",
    State.UNKNOWN: "?",
    State.NOT_RUN: "o",
    State.NOT_APPLICABLE: ".",
}
_SHORT: Final = {
    Effect.RECOVERED: "ok",
    Effect.MASKED: "mask",
    Effect.UNSEEN: "unseen",
    Effect.UNNOTICED: "harm",
    Effect.HARMFUL: "harm",
    Effect.STOPPED: "stop",
    Effect.LEFT_ALONE: "calm",
    Effect.DISTURBED: "acted",
    Effect.NEVER_STRUCK: "none",
}
NOT_ASKED_FOR: Final = "not asked for"
_NOT_RUN, _NOT_APPLICABLE = "not run: ", "not applicable: "
_STATES: Final = {Outcome.HELD: State.RIGHT, Outcome.BROKEN: State.WRONG, Outcome.UNKNOWN: State.UNKNOWN}


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One cell and what it proved, or why it is empty."""

    row: str
    phase: str
    model: str
    control: bool
    state: State
    why: str = ""  # of an empty cell
    score: Score | None = None
    seed: int = 0
    replay: str = ""
    took_s: float = 0.0

    @property
    def key(self) -> str:
        """As it is written on the command line."""
        return f"{self.row}:{self.phase}"

    def short(self) -> str:
        """A few characters for a table: the state, and when it was seen or else what became of it."""
        score = self.score
        if score is None:
            return SYMBOLS[self.state]
        seen = f"{score.detected_s:.2f}" if score.detected_s is not None else _SHORT[score.effect]
        return f"{SYMBOLS[self.state]} {seen}"


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """What all drilled cells show together; None: nothing to take the mean of."""

    states: dict[str, int]
    effects: dict[str, int]
    mttd_s: float | None  # mean time from a strike to its detection
    mttdiag_s: float | None  # to the diagnosis
    mttr_s: float | None  # to the first new step
    culprits_named: int
    culprits_right: int
    culprits_asked: int
    injected: int
    covered: int  # recovered within both promises, or masked
    masked: int
    harmful: int  # seen or not, the result is another one, or there is none
    controls: int
    controls_disturbed: int
    wrongly_replaced: int  # cells in which a seat lost its process though nothing had struck it
    wrongly_quarantined: int  # controls in which a node was kept out

    @property
    def precision(self) -> float | None:
        """Of naming culprits: right ones among those that were named."""
        return self.culprits_right / self.culprits_named if self.culprits_named else None

    @property
    def recall(self) -> float | None:
        """Right ones among those that were to be named."""
        return self.culprits_right / self.culprits_asked if self.culprits_asked else None

    @property
    def coverage(self) -> float | None:
        """Faults recovered within both promises, over faults injected."""
        return self.covered / self.injected if self.injected else None


def empty(cell: Cell, why: str = "") -> CellResult:
    """A cell that is not drilled, with its reason."""
    reason = why or (cell.expected if isinstance(cell.expected, str) else f"{_NOT_RUN}{NOT_ASKED_FOR}")
    state = State.NOT_APPLICABLE if reason.startswith(_NOT_APPLICABLE) else State.NOT_RUN
    said = reason.removeprefix(_NOT_APPLICABLE).removeprefix(_NOT_RUN)
    return _result(cell, state, why=said)


def drilled(cell: Cell, score: Score, *, seed: int, replay: str, took_s: float) -> CellResult:
    """A cell that was drilled."""
    state = _STATES[score.outcome]
    return msgspec.structs.replace(_result(cell, state), score=score, seed=seed, replay=replay, took_s=took_s)


def completed(results: Iterable[CellResult]) -> list[CellResult]:
    """All cells of the matrix in their order: those that were drilled, and the empty ones."""
    newest = {result.key: result for result in results}
    return [newest.get(cell.key) or empty(cell) for cell in CELLS]


def outcome_of(results: Sequence[CellResult]) -> Outcome:
    """The exit status: cells that are empty do not count, unless all are."""
    states = {result.state for result in results}
    if State.WRONG in states:
        return Outcome.BROKEN
    return Outcome.HELD if State.RIGHT in states and State.UNKNOWN not in states else Outcome.UNKNOWN


def sums_of(results: Sequence[CellResult]) -> Sums:
    """The sums over all cells that were drilled and whose fault struck."""
    struck = [r for r in results if r.score is not None and r.score.effect is not Effect.NEVER_STRUCK]
    scores = [r.score for r in struck if r.score is not None and not r.control]
    controls = [r.score for r in struck if r.score is not None and r.control]
    effects = Counter(score.effect for score in scores)
    return Sums(
        states=dict(Counter(str(r.state) for r in results)),
        effects={str(effect): count for effect, count in effects.items()},
        mttd_s=_mean(scores, lambda score: score.detected_s),
        mttdiag_s=_mean(scores, lambda score: score.diagnosed_s),
        mttr_s=_mean(scores, lambda score: score.recovered_s),
        culprits_named=sum(score.culprit in (Mark.RIGHT, Mark.WRONG) for score in scores),
        culprits_right=sum(score.culprit is Mark.RIGHT for score in scores),
        culprits_asked=sum(score.culprit is not Mark.NOT_ASKED for score in scores),
        injected=len(scores),
        covered=sum(score.kept for score in scores),
        masked=effects[Effect.MASKED],
        harmful=effects[Effect.UNNOTICED] + effects[Effect.HARMFUL] + effects[Effect.STOPPED],
        controls=len(controls),
        controls_disturbed=sum(score.effect is Effect.DISTURBED for score in controls),
        wrongly_replaced=sum(bool(score.replaced) for score in [*scores, *controls]),
        wrongly_quarantined=sum(bool(score.quarantined) for score in controls),
    )


def said(sums: Sums) -> list[str]:
    """The sums as sentences."""
    states = ", ".join(f"{sums.states.get(state, 0)} {state}" for state in State)
    effects = ", ".join(f"{count} {effect}" for effect, count in sorted(sums.effects.items()))
    coverage = "-" if sums.coverage is None else f"{sums.coverage:.0%}"
    recovered = (
        f"coverage: {sums.covered} of {sums.injected} faults ({coverage}) ended within the promised RPO and RTO, "
        f"{sums.masked} of them masked: injected in software, never seen, and without effect"
    )
    times = (
        f"mean times from the strike: detected {_seconds(sums.mttd_s)}, diagnosed {_seconds(sums.mttdiag_s)}, "
        f"first new step {_seconds(sums.mttr_s)}"
    )
    right = sums.culprits_right
    culprits = f"culprits: precision {right} of {sums.culprits_named}, recall {right} of {sums.culprits_asked}"
    controls = (
        f"controls: {sums.controls_disturbed} of {sums.controls} disturbed, {sums.wrongly_quarantined} nodes wrongly "
        f"kept out; {sums.wrongly_replaced} cells in which a healthy process was replaced"
    )
    return [f"cells: {states}", recovered, f"effects: {effects or 'none'}", times, culprits, controls]


def _result(cell: Cell, state: State, why: str = "") -> CellResult:
    row = cell.row
    return CellResult(row=row.name, phase=str(cell.phase), model=row.model, control=row.control, state=state, why=why)


def _mean(scores: Sequence[Score], pick: Callable[[Score], float | None]) -> float | None:
    found = [value for score in scores if (value := pick(score)) is not None]
    return sum(found) / len(found) if found else None


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
