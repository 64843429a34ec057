"""The controller: ``step(state, fact, now_s) -> state, decisions``, pure and total.

Facts that do not fit what the controller knows (of a dead or unknown process, of an older term, out of order) are
stale and change nothing. The same facts at the same times give the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from closeranks.decide import (
    blame,
    convictions,
    departures,
    endings,
    exits,
    membership,
    memory,
    nodes,
    recovery,
    reports,
    trouble,
)
from closeranks.decide.budgets import Ledger
from closeranks.decide.diagnosis import Seen, Trouble
from closeranks.decide.pace import Pace
from closeranks.decide.protocol import (
    Begun,
    Decision,
    Fact,
    GroupLoaded,
    GroupStuck,
    NodeBack,
    NodeFitness,
    NodeJoined,
    NodeLeaves,
    NodeLost,
    NodeSilent,
    ProcConfirmed,
    ProcEnded,
    ProcFinished,
    ProcJoined,
    ProcPaused,
    ProcReady,
    ProcRegrouped,
    ProcRestored,
    ProcResumed,
    ProcSplits,
    ProcStuck,
    StateCleared,
    StateSaved,
    StateSuspected,
    StepDone,
    StepRuled,
    StopAsked,
    TermPoisoned,
    Tick,
)
from closeranks.decide.state import THROUGH, TRAINING, Life, Poison, Proc, Settings, Stage, State
from closeranks.decide.turn import Turn

_UNDER_A_TERM = TRAINING | THROUGH | {Stage.SEATED, Stage.REGROUPED, Stage.RESTORED, Stage.INTERRUPTED}


def initial(settings: Settings) -> State:
    """The state before the first fact.

    Raises:
        ValueError: the settings cannot be met.
    """
    if settings.seats < 1 or settings.spares < 0 or not 0 <= settings.nodes_min <= settings.nodes_needed:
        raise ValueError(
            f"expected seats >= 1, spares >= 0 and 0 <= nodes_min <= nodes_needed, got {settings.seats}, "
            f"{settings.spares}, {settings.nodes_min} and {settings.nodes_needed}"
        )
    return State(settings=settings, ledger=Ledger(limits=settings.limits), pace=Pace())


def step(state: State, fact: Fact, now_s: float) -> tuple[State, tuple[Decision, ...]]:
    """The state after the fact, and what to do about it, in this order."""
    turn = Turn(state, now_s)
    if state.life is not Life.ENDED or isinstance(fact, StopAsked):
        _HANDLERS[type(fact)](turn, fact)
    return turn.state, tuple(turn.decisions)


def _living(turn: Turn, number: int) -> Proc | None:
    """The process, unless it is unknown, gone or about to be."""
    proc = turn.state.procs.get(number)
    return None if proc is None or proc.stage is Stage.DOOMED else proc


def _member(turn: Turn, number: int, term: int) -> Proc | None:
    """The process, if it belongs to this term and the term is the newest."""
    proc = _living(turn, number)
    if proc is None or not proc.term == term == turn.state.group.term:
        return None
    return proc


def _begun(turn: Turn, fact: Begun) -> None:
    if turn.state.life is Life.NEW:
        turn.update(saved_step=fact.saved_step, register=fact.register)
        blame.look_back(turn)
        nodes.assemble(turn)


def _joined(turn: Turn, fact: ProcJoined) -> None:
    proc = _living(turn, fact.proc)
    if proc is None or proc.stage is not Stage.STARTED:
        return
    turn.update(library=True)
    turn.stage(proc, Stage.JOINED)
    if proc.seat is not None and turn.state.life is Life.JOINING:
        exits.seat_joined(turn)


def _ready(turn: Turn, fact: ProcReady) -> None:
    proc = _living(turn, fact.proc)
    if proc is None:
        return
    if proc.stage is Stage.BUILDING:
        turn.stage(proc, Stage.LOOPING, replicated=fact.replicated)
        membership.note_arrival(turn)
    elif proc.stage in (Stage.STARTED, Stage.JOINED) and not _is_original(proc):
        turn.stage(proc, Stage.WARM, replicated=fact.replicated, settled=fact.settled)
        trouble.regroup_when_gathered(turn)


def _is_original(proc: Proc) -> bool:
    return proc.seat is not None and proc.filled_by is None


def _ended(turn: Turn, fact: ProcEnded) -> None:
    proc = turn.state.procs.get(fact.proc)
    if proc is not None:
        exits.ended(turn, proc, fact)


def _stuck(turn: Turn, fact: ProcStuck) -> None:
    proc = _living(turn, fact.proc)
    if proc is None:
        return
    if proc.seat is None:
        membership.isolate(turn, proc, f"spare is stuck: {fact.detail}", capture_stack=True)
        return
    found = Trouble(
        seen=Seen.PROGRESS,
        detail=f"seat {proc.seat} makes no progress: {fact.detail}",
        seats=(proc.seat,),
        proc=proc.proc,
        silent_s=fact.silent_s,
        allowed_s=fact.allowed_s,
    )
    over = "the last step was closed everywhere before" if turn.state.life is Life.LEAVING else ""
    trouble.meet(turn, found, stuck=(proc,), hopeless=over)


def _group_stuck(turn: Turn, fact: GroupStuck) -> None:
    if turn.state.life is not Life.RUNNING or not turn.state.library:
        return
    if turn.state.group.exited:
        recovery.meet_left_early(turn)
        return
    odd = [p for n in fact.suspects if (p := _living(turn, n)) is not None]
    seats = tuple(sorted(p.seat for p in odd if p.seat is not None))
    if seats:
        detail = f"seats {list(seats)} do what the others do not: {fact.detail}"
        trouble.meet(turn, Trouble(seen=Seen.MISMATCH, detail=detail, seats=seats))
    else:
        trouble.meet(turn, Trouble(seen=Seen.STANDSTILL, detail=fact.detail))


def _poisoned(turn: Turn, fact: TermPoisoned) -> None:
    proc = _member(turn, fact.proc, fact.term)
    if proc is not None and proc.stage in _UNDER_A_TERM and proc.stage is not Stage.INTERRUPTED:
        _suspect(turn, proc, fact.detail)


def _suspect(turn: Turn, proc: Proc, detail: str) -> None:
    lives = (Life.RUNNING, Life.REGROUPING, Life.RESTORING)
    if turn.state.poison is None and turn.state.life in lives:
        turn.update(poison=Poison(at_s=turn.now_s, proc=proc.proc, detail=detail))


def _paused(turn: Turn, fact: ProcPaused) -> None:
    proc = _living(turn, fact.proc)
    # A node that was out of reach may have missed a term: its members pause under an older one.
    if proc is None or proc.term != fact.term or proc.stage not in _UNDER_A_TERM:
        return
    turn.stage(proc, Stage.PAUSED, brought=fact)
    _suspect(turn, proc, f"seat {proc.seat} left its block")
    trouble.regroup_when_gathered(turn)


def _regrouped(turn: Turn, fact: ProcRegrouped) -> None:
    proc = _member(turn, fact.proc, fact.term)
    if proc is not None and proc.stage is Stage.SEATED:
        turn.stage(proc, Stage.REGROUPED, groups=fact.groups)
        recovery.agree_when_regrouped(turn)


def _restored(turn: Turn, fact: ProcRestored) -> None:
    proc = _member(turn, fact.proc, fact.term)
    if proc is not None and proc.stage is Stage.REGROUPED and turn.state.life is Life.RESTORING:
        turn.stage(proc, Stage.RESTORED, digest=fact.digest, restored_step=fact.step)
        recovery.go_on_when_restored(turn)


def _resumed(turn: Turn, fact: ProcResumed) -> None:
    proc = _member(turn, fact.proc, fact.term)
    if proc is not None and proc.stage is Stage.RESUMING:
        turn.stage(proc, Stage.LOOPING)


def _ruled(turn: Turn, fact: StepRuled) -> None:
    if _member(turn, fact.proc, fact.term) is not None:
        convictions.ruled(turn, fact)


def _state_saved(turn: Turn, fact: StateSaved) -> None:
    # The newest, not the highest: after a roll back the steps that were given up do not count.
    turn.update(saved_step=fact.step)


def _splits(turn: Turn, fact: ProcSplits) -> None:
    if _living(turn, fact.proc) is not None:
        memory.can_split(turn, fact.finer)


def _group_loaded(turn: Turn, fact: GroupLoaded) -> None:
    state = turn.state
    if state.life is not Life.RUNNING or state.group.looped:
        return
    turn.update_group(newest_step=fact.step, plan_step=fact.step)
    if state.group.trusted:
        recovery.clear_by_loading(turn, fact.step)
    if state.incident is not None:
        turn.update(incident=replace(state.incident, plan_step=fact.step))


def _step_done(turn: Turn, fact: StepDone) -> None:
    if endings.step_done(turn, fact):
        recovery.watch_canary(turn, fact)
        departures.let_go(turn, between_steps=True)


def _state_suspected(turn: Turn, fact: StateSuspected) -> None:
    recovery.suspect(turn, fact.source, fact.detail)


def _state_cleared(turn: Turn, fact: StateCleared) -> None:
    recovery.clear(turn, fact.source, fact.detail)


def _finished(turn: Turn, fact: ProcFinished) -> None:
    proc = _living(turn, fact.proc)
    if proc is not None and proc.stage in TRAINING and turn.state.life is Life.RUNNING:
        turn.stage(proc, Stage.FINISHED)
        endings.confirm_if_finished(turn)


def _confirmed(turn: Turn, fact: ProcConfirmed) -> None:
    proc = _member(turn, fact.proc, fact.term)
    if proc is not None and proc.stage is Stage.FINISHED and turn.state.life is Life.RUNNING:
        turn.stage(proc, Stage.CONFIRMED, digest=fact.digest)
        if convictions.agree_at_the_end(turn):
            endings.leave_if_confirmed(turn)


def _stop_asked(turn: Turn, fact: StopAsked) -> None:
    endings.stop_asked(turn, fact)


def _tick(turn: Turn, _: Tick) -> None:
    recovery.check_deadlines(turn)
    departures.let_go(turn, between_steps=not turn.state.library)


_HANDLERS: dict[type[Fact], Callable[[Turn, Any], None]] = {
    Begun: _begun,
    ProcJoined: _joined,
    ProcReady: _ready,
    ProcEnded: _ended,
    ProcStuck: _stuck,
    GroupStuck: _group_stuck,
    TermPoisoned: _poisoned,
    ProcPaused: _paused,
    ProcRegrouped: _regrouped,
    ProcRestored: _restored,
    ProcResumed: _resumed,
    StepRuled: _ruled,
    ProcSplits: _splits,
    StateSaved: _state_saved,
    GroupLoaded: _group_loaded,
    StepDone: _step_done,
    StateSuspected: _state_suspected,
    StateCleared: _state_cleared,
    ProcFinished: _finished,
    ProcConfirmed: _confirmed,
    StopAsked: _stop_asked,
    NodeJoined: nodes.joined,
    NodeLost: nodes.lost,
    NodeSilent: nodes.silent,
    NodeBack: reports.back,
    NodeFitness: nodes.fitness,
    NodeLeaves: departures.asked,
    Tick: _tick,
}
