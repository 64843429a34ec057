"""Which rung answers a trouble: what the ladder has to know, and what the answer costs."""

from __future__ import annotations

from msgspec.structs import replace

from closeranks.decide import budgets, ladder, membership
from closeranks.decide.answers import Answer, answer_to
from closeranks.decide.diagnosis import Seen, Trouble
from closeranks.decide.state import Incident, Life, State
from closeranks.decide.turn import Turn
from closeranks.events import Decided, Phase, Rung

FROM_SCRATCH = (Rung.SHRINK, Rung.COLD_RESTART, Rung.ROLL_BACK)  # the group ends and starts again
_DAMAGED = frozenset({Seen.DIGEST, Seen.CANARY, Seen.DIVERGED})  # what was saved lately may be as wrong
_UNTRUSTED = _DAMAGED | {Seen.NO_DONOR}


def choose(turn: Turn, trouble: Trouble, fault: str, *, start_up: bool, hopeless: str, relieved: bool) -> ladder.Choice:
    """Book the trouble and choose; the budget of what is chosen is charged.

    ``relieved``: what caused it was changed, so that the answer to the fault holds no longer.
    """
    state, incident = turn.state, turn.incident()
    members = membership.occupants(state).values()
    empty, placed = membership.empty_seats(state), membership.placements(state)
    restarted: budgets.Ledger = state.ledger
    cold_budget: budgets.Within | budgets.Exceeded = budgets.Within()
    if not relieved:
        restarted, cold_budget = _restart(state, trouble, start_up=start_up)
    answer = Answer() if relieved else answer_to(state.settings.answers, fault)
    situation = ladder.Situation(
        fault=fault,
        lost=len(empty),
        survivors=sum(p.holds_state for p in members),
        spares=membership.served(state, placed),
        moves=sum(node != membership.home(state, seat) for seat, node in placed.items()),
        roomless=len(empty) - len(placed),
        patience_s=state.settings.node_patience_s,
        seats=state.seats,
        fewer_seats=trouble.fewer_seats,
        looped=state.group.looped,
        start_up=start_up,
        replicated=all(p.replicated for p in members),
        corrupt=trouble.detail if trouble.seen in _UNTRUSTED or _is_overdue_end(state, trouble) else "",
        hopeless=hopeless,
        spent=spent(state, incident),
        budget=_book(turn, trouble, fault, first=incident.rung is Rung.STOP),
        cold_budget=cold_budget,
        saved_step=state.saved_step,
        suspect=trouble.detail if answer.back_to_verified or trouble.seen in _DAMAGED else state.suspicion,
        wait_s=answer.wait_s if Rung.REGROUP in incident.failures else 0.0,
        answer=answer,
    )
    turn.phase(Phase.DECIDE)
    choice = ladder.choose(situation)
    if choice.rung in FROM_SCRATCH:
        spent_on = {"starts": restarted.starts, "colds": restarted.colds, "roll_backs": restarted.roll_backs}
        turn.update(ledger=replace(turn.state.ledger, **spent_on))
    term = turn.state.term + (choice.rung is not Rung.STOP)
    turn.note(Decided(incident=incident.number, rung=choice.rung, term=term, reason=choice.reason))
    not_before_s = turn.now_s + situation.wait_s if choice.rung is Rung.REGROUP else 0.0
    turn.update(incident=replace(turn.incident(), rung=choice.rung, not_before_s=not_before_s))
    return choice


def _restart(
    state: State, trouble: Trouble, *, start_up: bool
) -> tuple[budgets.Ledger, budgets.Within | budgets.Exceeded]:
    if trouble.seen is Seen.COORDINATOR and not state.group.looped:
        return state.ledger, budgets.Within()  # the group had done nothing yet, and did nothing wrong
    if trouble.seen is Seen.CANARY:
        return budgets.charge_roll_back(state.ledger)
    return budgets.charge_start(state.ledger) if start_up else budgets.charge_cold(state.ledger)


def _book(turn: Turn, trouble: Trouble, fault: str, *, first: bool) -> budgets.Within | budgets.Exceeded:
    """Book the incident (once) and each of its losses; the first budget that is exceeded decides."""
    ledger, verdict = turn.state.ledger, budgets.Within()
    verdicts: list[budgets.Within | budgets.Exceeded] = []
    if first:
        ledger, verdict_of_all = budgets.charge_incident(ledger, turn.now_s)
        verdicts.append(verdict_of_all)
    for place in _places(turn, trouble):
        ledger, verdict_of_cause = budgets.charge_cause(ledger, fault, place, turn.now_s)
        verdicts.append(verdict_of_cause)
    turn.update(ledger=ledger)
    return next((v for v in verdicts if isinstance(v, budgets.Exceeded)), verdict)


def _places(turn: Turn, trouble: Trouble) -> tuple[int | str, ...]:
    """What a loss is booked on: its seats, or their node, or once in an incident what took several nodes along."""
    incident = turn.incident()
    if not trouble.node:
        return trouble.seats
    if not trouble.domain:
        return (f"node {trouble.node}",)
    if trouble.domain in incident.domains:
        return ()
    turn.update(incident=replace(incident, domains=(*incident.domains, trouble.domain)))
    return (trouble.domain,)


def spent(state: State, incident: Incident) -> frozenset[Rung]:
    """Rungs that are not taken any more: they did not help in this incident, or right before it."""
    without = {rung for rung, times in incident.failures.items() if times >= state.settings.tries_per_rung}
    # Regrouping ended the last incident, but the job got no further than one step: it does not help.
    if state.unhelped_step is not None and state.group.newest_step <= state.unhelped_step:
        without.add(Rung.REGROUP)
    return frozenset(without)


def _is_overdue_end(state: State, trouble: Trouble) -> bool:
    """A process that cannot be ended could still act beside its successor: no warm rung is safe."""
    return trouble.seen is Seen.DEADLINE and not trouble.seats and state.life is Life.GATHERING
