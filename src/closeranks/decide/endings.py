"""How a run ends: completed, failed or stopped."""

from __future__ import annotations

from msgspec.structs import replace

from closeranks.decide import budgets, canary, membership, pace
from closeranks.decide.choice import FROM_SCRATCH
from closeranks.decide.diagnosis import late_steps_counted
from closeranks.decide.protocol import ConfirmEnd, EndAfterStep, EndRun, LetLeave, StepDone, StopAsked
from closeranks.decide.state import THROUGH, Ending, Incident, Life, Stage, State, Stop
from closeranks.decide.turn import Turn
from closeranks.events import IncidentClosed, Rung


def end(turn: Turn, ending: Ending) -> None:
    """The last decision of a run."""
    if turn.state.incident is not None:
        close_incident(turn, "recovered" if ending.outcome == "completed" else "stopped", first_step_s=None)
    turn.enter(Life.ENDED)
    turn.update(ending=ending)
    turn.decide(
        EndRun(outcome=ending.outcome, exit_code=ending.exit_code, reason=ending.reason, now=ending.now),
    )


def complete(turn: Turn, reason: str) -> None:
    """Every seat came to its end; asked to stop, that is what it did."""
    stop = turn.state.stop
    if stop is not None:
        stopped(turn, stop, "asked to stop; every seat finished its step and left")
    else:
        end(turn, Ending(outcome="completed", exit_code=0, reason=reason, now=False))


def fail(turn: Turn, exit_code: int, reason: str) -> None:
    """Nothing can be done, for this reason."""
    end(turn, Ending(outcome="failed", exit_code=exit_code, reason=reason, now=False))


def stopped(turn: Turn, stop: Stop, reason: str, *, now: bool = False) -> None:
    """Someone wanted it so."""
    end(turn, Ending(outcome="stopped", exit_code=128 + stop.signal, reason=reason, now=now))


def close_incident(turn: Turn, outcome: str, first_step_s: float | None) -> None:
    """The incident is over. Steps are lost when the members went on before the newest step that all had closed."""
    incident = turn.incident()
    lost = 0 if incident.plan_step is None else max(0, incident.done_before - incident.plan_step)
    turn.note(
        IncidentClosed(
            incident=incident.number,
            outcome=outcome,
            steps_lost=lost,
            at_least=incident.unsure and incident.rung in FROM_SCRATCH,
            first_step_s=first_step_s,
        ),
    )
    helped_in_place = incident.rung is Rung.REGROUP and outcome == "recovered"
    if outcome == "recovered" and turn.state.library:
        turn.update(canary=canary.recovered(turn.state.canary, _watched(turn.state, incident)))
    turn.update(
        incident=None,
        unhelped_step=turn.state.group.newest_step if helped_in_place else None,
        pace=pace.recovered(turn.state.pace, incident.number, incident.opened_s),
    )


def _watched(state: State, incident: Incident) -> canary.Watched:
    """What the canary of this incident looks at. A state that was loaded may be bad itself."""
    anew = incident.rung in FROM_SCRATCH
    return canary.Watched(
        incident=incident.number,
        replicas=0 if anew else len(membership.occupants(state)),
        before_step=(-1 if incident.plan_step is None else incident.plan_step) + (not anew),
    )


def step_done(turn: Turn, fact: StepDone) -> bool:
    """Every seat closed a step: progress. Whether it is one outside of incidents, or the one that ends it."""
    state, closed_s = turn.state, turn.now_s - fact.ago_s
    if fact.step <= state.group.newest_step:
        return False
    turn.update_group(newest_step=fact.step, unsure=False)
    incident = state.incident
    if incident is not None:
        if state.life is not Life.RUNNING or incident.plan_step is None or fact.step <= incident.plan_step:
            # It was closed before the loss and is told late.
            turn.update(
                incident=replace(incident, done_before=max(incident.done_before, fact.step)),
                signatures=late_steps_counted(state.signatures, incident.done_before, fact.step),
            )
            return False
        close_incident(turn, "recovered", first_step_s=max(0.0, closed_s - incident.opened_s))
        membership.refill_spares(turn)
    turn.update(ledger=budgets.stepped(turn.state.ledger))
    measured, normal = pace.stepped(turn.state.pace, fact.duration_s, closed_s)
    turn.update(pace=measured)
    if normal is not None:
        turn.note(normal)
    return True


def stop_asked(turn: Turn, fact: StopAsked) -> None:
    """Once: finish the step and leave, where there is a step to finish. Twice: leave now."""
    state, stop = turn.state, Stop(signal=fact.signal)
    if state.ending is not None:
        if fact.now and not state.ending.now:
            turn.update(ending=replace(state.ending, now=True))
            ending = state.ending
            turn.decide(EndRun(outcome=ending.outcome, exit_code=ending.exit_code, reason=ending.reason, now=True))
        return
    if fact.now:
        stopped(turn, stop, "asked to stop now", now=True)
    elif state.stop is None and state.life is not Life.LEAVING:
        _stop_in_order(turn, stop)


def _stop_in_order(turn: Turn, stop: Stop) -> None:
    state = turn.state
    in_loop = {Stage.LOOPING, Stage.RESUMING, *THROUGH}
    stages = {p.stage for p in membership.occupants(state).values()}
    if state.life is Life.RUNNING and state.group.looped and stages <= in_loop:
        turn.update(stop=stop)
        turn.decide(EndAfterStep())
    elif state.incident is not None:
        stopped(turn, stop, f"asked to stop during the recovery of incident {state.incident.number}")
    else:
        stopped(turn, stop, "asked to stop; no step of a training loop was in flight")


def confirm_if_finished(turn: Turn) -> None:
    """Ask everyone once every seat closed the last step or left there.

    From the moment somebody leaves, a lost seat can be given to nobody: so all have to be there still.
    """
    if _all_through(turn.state, *THROUGH):
        turn.decide(ConfirmEnd(term=turn.state.group.term))


def _all_through(state: State, *stages: Stage) -> bool:
    if state.life is not Life.RUNNING or not membership.all_at(state, *stages):
        return False
    members = len(membership.occupants(state))
    return members > 0 and members + len(state.group.exited) >= state.seats


def leave_if_confirmed(turn: Turn) -> None:
    """Let everyone leave once every seat is known to be there."""
    state = turn.state
    if not _all_through(state, Stage.CONFIRMED):
        return
    if state.incident is not None:
        close_incident(turn, "recovered", first_step_s=None)
    turn.enter(Life.LEAVING)
    turn.decide(LetLeave())
