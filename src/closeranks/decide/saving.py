"""The save controller of a run: ``step(state, fact, now_s) -> state, decisions``, pure and total.

When a snapshot is due follows from measured costs and losses (``save_interval``) or from what the user set. Training
does not wait for a decision, so a snapshot is asked for a few steps ahead. Facts about saves that the controller does
not know change nothing. ``now_s`` is any monotonic clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from closeranks.decide.save_interval import (
    SLOWDOWN,
    Choice,
    Cost,
    EverySeconds,
    EverySteps,
    Losses,
    Prior,
    choose,
    judge,
    mtbf_of,
    prior_of,
    spell,
)
from closeranks.decide.saving_protocol import (
    EndComing,
    IntervalChosen,
    LossSeen,
    SaveCommitted,
    SaveDecision,
    SaveFact,
    SaveFailed,
    SaveFreed,
    SaveHeldBack,
    SaveLost,
    SavingBegan,
    SnapshotDropped,
    SnapshotTaken,
    StepPassed,
    TakeSnapshot,
)

FIRST_STEPS: Final = 3
FIRST_S: Final = 60.0
PATIENCE_S: Final = 60.0  # for the answer to a snapshot whose step has passed
RETRY_S: Final = 5.0  # doubled with each failure in a row
RETRY_MOST_S: Final = 600.0
_SAYS_FROM: Final = 0.2  # a change of the interval, or a delay, is worth a record from this share on
_KEPT: Final = 8  # newest pauses and writes
_STEPS_KEPT: Final = 32
_STEPS_NEEDED: Final = 5  # with a write and without, for a slowdown
_FEW: Final = 4


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known and wanted before the run begins."""

    every: EverySteps | EverySeconds | None = None  # set by the user; None: chosen
    rpo_s: float | None = None  # the most training that a loss may cost
    prior: Prior = prior_of(1)
    history: Losses = Losses()  # of other runs of this size
    lead_s: float = 0.25  # until a decision has reached every seat

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.rpo_s is not None and not self.rpo_s > 0:
            raise ValueError(f"RPO: expected a time above zero, got {self.rpo_s:g} s")
        if not 0 <= self.lead_s < math.inf:
            raise ValueError(f"lead: expected a time of at least zero, got {self.lead_s:g} s")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that was asked for and not yet answered."""

    step: int
    at_s: float


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """A save that is not over: it is when it is durable and its arenas are free."""

    step: int
    taken_s: float
    committed: bool = False
    freed: bool = False


class SaveState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the controller knows."""

    settings: Settings
    began_s: float | None = None  # watched for losses since then
    closed_step: int = -1
    closed_s: float = 0.0
    closed_here: int = 0  # steps since training last began
    steps_s: tuple[float, ...] = ()  # newest periods with nothing being written
    beside_s: tuple[float, ...] = ()  # and beside a write
    pauses_s: tuple[float, ...] = ()
    durable_after_s: tuple[float, ...] = ()  # newest times from snapshot to commit
    busy_after_s: tuple[float, ...] = ()  # and until the arenas were free
    losses: int = 0
    asked: Asked | None = None
    writing: tuple[Writing, ...] = ()
    last_step: int = -1  # of the last snapshot taken, or where training began
    last_s: float = 0.0
    durable_step: int | None = None
    durable_s: float | None = None  # when its state was current
    redo: str = ""  # why the next one is due at once
    failures: int = 0  # in a row
    retry_at_s: float = 0.0
    choice: Choice | None = None
    said: Choice | None = None  # newest choice that was said
    late_said_s: float = 0.0
    end_step: int | None = None


def initial(settings: Settings) -> SaveState:
    """The state before the first fact."""
    return SaveState(settings=settings)


def step(state: SaveState, fact: SaveFact, now_s: float) -> tuple[SaveState, tuple[SaveDecision, ...]]:
    """The state after the fact, and what to do about it, in this order."""
    turn = _Turn(state, now_s)
    _HANDLERS[type(fact)](turn, fact)
    return turn.state, tuple(turn.decisions)


class _Turn:
    """Collects changes; lives no longer than the call."""

    def __init__(self, state: SaveState, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.decisions: list[SaveDecision] = []

    def update(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def take(self, number: int, reason: str, *, final: bool = False) -> None:
        self.update(asked=Asked(step=number, at_s=self.now_s))
        self.decisions.append(TakeSnapshot(step=number, final=final, reason=reason))

    def written(self, number: int) -> Writing | None:
        return next((save for save in self.state.writing if save.step == number), None)

    def free(self, number: int) -> None:
        self.update(writing=tuple(save for save in self.state.writing if save.step != number))


def _newest(values: tuple[float, ...], value: float, most: int = _KEPT) -> tuple[float, ...]:
    return (*values, value)[-most:]


# --- facts ------------------------------------------------------------------------------------------------------


def _began(turn: _Turn, fact: SavingBegan) -> None:
    state = turn.state
    turn.update(
        began_s=turn.now_s if state.began_s is None else state.began_s,
        closed_step=fact.step,
        closed_s=turn.now_s,
        closed_here=0,
        last_step=fact.step,
        last_s=turn.now_s,
        durable_step=fact.step if fact.durable else state.durable_step,
        durable_s=turn.now_s if fact.durable else state.durable_s,
        asked=None,
        redo="",
        end_step=None,
    )


def _step_passed(turn: _Turn, fact: StepPassed) -> None:
    state = turn.state
    turn.update(closed_step=fact.step, closed_s=turn.now_s, closed_here=state.closed_here + 1)
    period_s = fact.period_s
    if fact.step == state.last_step + 1 and state.pauses_s:
        period_s -= state.pauses_s[-1]  # copying the state comes between the two closes, and is counted as that
    if period_s > 0:
        if state.closed_here >= 2:  # noqa: PLR2004 - the first steps compile and allocate
            periods = "beside_s" if state.writing else "steps_s"
            turn.update(**{periods: _newest(getattr(state, periods), period_s, _STEPS_KEPT)})
        elif state.closed_here and not state.steps_s:
            turn.update(steps_s=(period_s,))
    asked = turn.state.asked
    if asked is not None and fact.step > asked.step and turn.now_s - asked.at_s > PATIENCE_S:
        problem = f"the seats have not answered for {spell(turn.now_s - asked.at_s)}"
        _failed(turn, SaveFailed(step=asked.step, problem=problem))
    _consider(turn)


def _taken(turn: _Turn, fact: SnapshotTaken) -> None:
    state = turn.state
    late_s = turn.now_s - state.last_s - _wanted_s(state)
    turn.update(
        asked=None,
        redo="",
        writing=(*state.writing, Writing(step=fact.step, taken_s=turn.now_s)),
        pauses_s=_newest(state.pauses_s, fact.pause_s),
        last_step=fact.step,
        last_s=turn.now_s,
        late_said_s=state.late_said_s if late_s > _SAYS_FROM * _wanted_s(state) else 0.0,
    )


def _dropped(turn: _Turn, fact: SnapshotDropped) -> None:
    if turn.state.asked is not None:
        turn.update(asked=None, end_step=None, redo=f"the last attempt was dropped: {fact.reason}")


def _committed(turn: _Turn, fact: SaveCommitted) -> None:
    state, save = turn.state, turn.written(fact.step)
    turn.update(failures=0, retry_at_s=0.0)
    if save is None:
        if state.durable_step is None or fact.step > state.durable_step:
            turn.update(durable_step=fact.step, durable_s=turn.now_s)
    elif not save.committed:
        turn.update(durable_step=fact.step, durable_s=save.taken_s)
        turn.update(durable_after_s=_newest(state.durable_after_s, turn.now_s - save.taken_s))
        _went_on(turn, replace(save, committed=True))


def _freed(turn: _Turn, fact: SaveFreed) -> None:
    save = turn.written(fact.step)
    if save is not None and not save.freed:
        turn.update(busy_after_s=_newest(turn.state.busy_after_s, turn.now_s - save.taken_s))
        _went_on(turn, replace(save, freed=True))


def _went_on(turn: _Turn, save: Writing) -> None:
    turn.free(save.step)
    if not (save.committed and save.freed):
        turn.update(writing=(*turn.state.writing, save))
    _choose(turn)
    _consider(turn)  # the next boundary may be minutes away: it is not to pass unused


def _failed(turn: _Turn, fact: SaveFailed) -> None:
    state = turn.state
    asked = state.asked is not None and state.asked.step == fact.step
    if not asked and turn.written(fact.step) is None:
        return
    turn.free(fact.step)
    failures = state.failures + 1
    final = state.end_step is not None
    retry_s = 0.0 if final else min(RETRY_S * 2.0 ** min(failures - 1, 16), RETRY_MOST_S)
    turn.update(
        asked=None if asked else state.asked,
        failures=failures,
        retry_at_s=turn.now_s + retry_s,
        redo=f"the save of step {fact.step} failed",
    )
    lost = SaveLost(
        step=fact.step,
        problem=fact.problem,
        failures=failures,
        retry_s=retry_s,
        durable_step=state.durable_step,
        at_risk_s=_at_risk_s(turn),
    )
    turn.decisions.append(lost)


def _loss(turn: _Turn, fact: LossSeen) -> None:
    state = turn.state
    turn.update(losses=state.losses + fact.cold)
    if state.asked is not None:
        turn.update(asked=None, end_step=None, redo="a loss came in the middle of the last attempt")
    if fact.cold:
        _choose(turn)


def _end(turn: _Turn, fact: EndComing) -> None:
    state = turn.state
    known = fact.step == state.durable_step or turn.written(fact.step) is not None
    if known or fact.step == state.end_step:
        # If the end is saved, what else was asked for is of a step that will not come.
        turn.update(end_step=fact.step, asked=None if known else state.asked)
        return
    turn.update(end_step=fact.step)
    reason = f"the run ends after step {fact.step} ({fact.why})"
    usual_s = _high(state.durable_after_s)
    if fact.notice_s is not None and usual_s > fact.notice_s:
        reason += f"; a write takes up to {spell(usual_s)}, the notice is {spell(fact.notice_s)}: it may not be done"
    turn.take(fact.step, reason, final=True)


_HANDLERS: Mapping[type[SaveFact], Callable[[_Turn, Any], None]] = {
    SavingBegan: _began,
    StepPassed: _step_passed,
    SnapshotTaken: _taken,
    SnapshotDropped: _dropped,
    SaveCommitted: _committed,
    SaveFreed: _freed,
    SaveFailed: _failed,
    LossSeen: _loss,
    EndComing: _end,
}


# --- when -------------------------------------------------------------------------------------------------------


def _consider(turn: _Turn) -> None:
    """Ask for a snapshot, if one is due by the time that a decision can be carried out."""
    state = turn.state
    if state.asked is not None or state.end_step is not None or not state.closed_here:
        return
    step_s = _step_s(state)
    passed_s = turn.now_s + state.settings.lead_s - state.closed_s
    ahead = 1 + (math.floor(passed_s / step_s) if step_s > 0 else 0)
    at_s = max(state.closed_s + ahead * step_s, turn.now_s)
    number, reason = _due(state, ahead, at_s)
    if not reason:
        return
    if state.writing:
        _hold_back(turn)
    elif turn.now_s >= state.retry_at_s:
        turn.take(number, reason)


def _due(state: SaveState, ahead: int, at_s: float) -> tuple[int, str]:
    """The step to save, and why; no reason if none is due so many steps ahead, at that time."""
    number = state.closed_step + ahead
    if state.redo:
        return number, f"again: {state.redo}"
    every = state.settings.every
    if isinstance(every, EverySteps):
        multiple = ((state.last_step + 1) // every.steps + 1) * every.steps - 1
        return max(multiple, number), f"every {every.steps} steps" if multiple < number + ahead else ""
    elapsed_s = at_s - state.last_s
    if every is None and state.choice is None:
        first_s = min(FIRST_S, state.settings.rpo_s or FIRST_S)
        due = state.closed_here + 1 >= FIRST_STEPS or elapsed_s >= first_s
        return number, "the first one, to measure what a save takes" if due else ""
    wanted_s, step_s = _wanted_s(state), _step_s(state)
    slack_s = step_s if state.settings.rpo_s is not None else step_s / 2  # a promise is never rounded up
    due = elapsed_s > wanted_s - slack_s + 1e-9 * wanted_s
    return number, f"{spell(elapsed_s)} after the last one; the interval is {spell(wanted_s)}" if due else ""


def _hold_back(turn: _Turn) -> None:
    state = turn.state
    wanted_s = _wanted_s(state)
    late_s = turn.now_s - state.last_s - wanted_s
    if late_s <= _SAYS_FROM * wanted_s or late_s < 2 * state.late_said_s:
        return
    turn.update(late_said_s=late_s)
    oldest = state.writing[0]
    usual_s = _high(state.busy_after_s or state.durable_after_s)
    usually = f", usually {spell(usual_s)}" if usual_s else ""
    reason = (
        f"step {oldest.step} has been written for {spell(turn.now_s - oldest.taken_s)}{usually}; "
        f"{spell(_at_risk_s(turn))} of training are not durable"
    )
    turn.decisions.append(SaveHeldBack(writing_step=oldest.step, late_s=late_s, reason=reason))


def _at_risk_s(turn: _Turn) -> float:
    """Training since the newest durable state, or since the beginning."""
    state = turn.state
    since_s = state.began_s if state.durable_s is None else state.durable_s
    return 0.0 if since_s is None else turn.now_s - since_s


# --- how often --------------------------------------------------------------------------------------------------


def _choose(turn: _Turn) -> None:
    """Choose anew from what was measured; say so if that changed it by a fifth."""
    state = turn.state
    if not state.pauses_s or not state.durable_after_s:
        return
    settings, cost = state.settings, _cost(state)
    own = Losses(count=state.losses, watched_s=turn.now_s - (state.began_s or 0.0), source="this run")
    mtbf_s, source = mtbf_of(settings.prior, (settings.history, own))
    if settings.every is None:
        choice = choose(cost, mtbf_s, settings.rpo_s)
    else:
        choice = judge(settings.every, cost, mtbf_s, settings.rpo_s)
    turn.update(choice=choice)
    said = state.said
    moved = said is None or abs(choice.interval_s - said.interval_s) > _SAYS_FROM * said.interval_s
    if moved or (said is not None and choice.rpo_kept != said.rpo_kept):
        turn.update(said=choice)
        reason = f"{choice.reason}; one loss in {spell(mtbf_s)} ({source})"
        steps = max(1, round(choice.interval_s / cost.step_s)) if cost.step_s > 0 else 1
        turn.decisions.append(
            IntervalChosen(interval_s=choice.interval_s, steps=steps, rpo_kept=choice.rpo_kept, reason=reason)
        )


def _cost(state: SaveState) -> Cost:
    settled = len(state.pauses_s) > 1
    return Cost(
        pause_s=statistics.median(state.pauses_s[1:] if settled and len(state.pauses_s) < _KEPT else state.pauses_s),
        settled=settled,
        durable_s=max(state.durable_after_s),
        busy_s=max(_high(state.busy_after_s), _high(state.durable_after_s)),
        slowdown=_slowdown(state),
        step_s=_step_s(state),
    )


def _high(values: tuple[float, ...]) -> float:
    """What most of them stay below: the largest, or of four and more the second largest, since one is no rule."""
    ordered = sorted(values, reverse=True)
    return ordered[len(ordered) >= _FEW] if ordered else 0.0


def _slowdown(state: SaveState) -> float:
    if min(len(state.steps_s), len(state.beside_s)) < _STEPS_NEEDED:
        return SLOWDOWN
    plain_s = statistics.median(state.steps_s)
    return min(max(statistics.median(state.beside_s) / plain_s - 1, 0.0), 1.0) if plain_s > 0 else SLOWDOWN


def _step_s(state: SaveState) -> float:
    """The usual time from one close to the next, 0 before one is known."""
    periods = state.steps_s[-9:] or state.beside_s[-9:]
    return statistics.median(periods) if periods else 0.0


def _wanted_s(state: SaveState) -> float:
    every = state.settings.every
    if isinstance(every, EverySteps):
        return every.steps * _step_s(state)
    if isinstance(every, EverySeconds):
        return every.seconds
    return FIRST_S if state.choice is None else state.choice.interval_s
