"""What a fault means for the node that it struck: its history, whether it is kept out, whether its seats leave it."""

from __future__ import annotations

from collections import Counter

from closeranks.decide import membership, quarantine
from closeranks.decide.answers import answer_to
from closeranks.decide.diagnosis import Diagnosis, Trouble
from closeranks.decide.fitness import Fit, NotYet, fit_for
from closeranks.decide.state import Node, State
from closeranks.decide.turn import Turn
from closeranks.events import ErrorSeen, NodeBlamed, NodeQuarantined, PersonNeeded

_BEYOND_DOUBT = (quarantine.By.PERSON, quarantine.By.CHECK)


def let_in(turn: Turn, node: Node) -> bool:
    """A node came: whether it is counted with at all. What rules have against it, it may make good as a last resort."""
    if not node.host:
        return True
    turn.update(register=quarantine.known(turn.state.register, node.host))
    answer = quarantine.admit(turn.state.register, node.host, turn.now_s, turn.state.settings.quarantine)
    barred = turn.state.barred - {node.name}
    if isinstance(answer, quarantine.Refused):
        way_out = f"to use it: closeranks nodes release {node.host}"
        detail = f"{node.name} is not given seats: {answer.reason}; {way_out}"
        turn.note(ErrorSeen(detector="quarantine", seat=None, proc=None, detail=detail))
        if answer.by in _BEYOND_DOUBT:
            return False
        barred |= {node.name}
    elif isinstance(fitness := _fitness(turn, node.host), NotYet):
        detail = f"{node.name} is given seats only where no other has room: {fitness.reason}"
        turn.note(ErrorSeen(detector="quarantine", seat=None, proc=None, detail=detail))
        barred |= {node.name}
    turn.update(barred=barred)
    return True


def _fitness(turn: Turn, host: str) -> Fit | NotYet:
    rules = turn.state.settings.quarantine
    return fit_for(rules.work_h, turn.state.register.nodes[host].hours, rules.infant_h)


def look_back(turn: Turn) -> None:
    """The run begins, and the history of nodes is there: those that came before it are judged by it now.

    Who starts a run of one node on a node that is kept out meant it, and is told what is known.
    """
    turn.update(nodes={name: node for name, node in turn.state.nodes.items() if let_in(turn, node)})
    host = turn.state.settings.host
    if not host:
        return
    turn.update(register=quarantine.known(turn.state.register, host))
    answer = quarantine.admit(turn.state.register, host, turn.now_s, turn.state.settings.quarantine)
    if isinstance(answer, quarantine.Refused):
        turn.note(PersonNeeded(about=host, reason=f"{answer.reason}; the run was started there and goes on"))


def blame(turn: Turn, trouble: Trouble, diagnosis: Diagnosis) -> None:
    """Book the fault on the nodes of its culprits, as the answer to it says."""
    answer = answer_to(turn.state.settings.answers, diagnosis.fault)
    for node, unit in _struck(turn.state, trouble, diagnosis):
        if answer.against_node:
            _book(turn, node, unit, diagnosis.fault)
        if answer.leave_node and node in turn.state.nodes:
            turn.update(barred=turn.state.barred | {node})


def _struck(state: State, trouble: Trouble, diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Node and unit of every culprit; a node that was lost as a whole is one."""
    if trouble.node:
        return [(trouble.node, "")]
    seats_on: Counter[str] = Counter()
    slots: dict[int, tuple[str, str]] = {}
    for seat in range(state.seats):
        node = membership.home(state, seat)
        slots[seat] = (node, f"slot {seats_on[node]}")
        seats_on[node] += 1
    return [slots.get(seat, ("", "slot 0")) for seat in diagnosis.culprits]


def _book(turn: Turn, node: str, unit: str, fault: str) -> None:
    host = _host(turn.state, node)
    if not host:
        return
    rules = turn.state.settings.quarantine
    failure = quarantine.Failure(fault=fault, at_s=turn.now_s, unit=unit)
    turn.update(register=quarantine.failed(turn.state.register, host, failure))
    turn.note(NodeBlamed(node=node, host=host, fault=fault, unit=unit, incident=turn.incident().number))
    verdict = quarantine.judge(turn.state.register, host, turn.now_s, rules)
    admitted = isinstance(quarantine.admit(turn.state.register, host, turn.now_s, rules), quarantine.Admitted)
    if not isinstance(verdict, quarantine.Suspect) or not admitted:
        return
    register, outcome = quarantine.keep_out(turn.state.register, host, verdict.reason, turn.now_s, rules)
    turn.update(register=register)
    if isinstance(outcome, quarantine.AskPerson):
        turn.note(PersonNeeded(about=host, reason=outcome.reason))
        return
    hours = (outcome.until_s - outcome.since_s) / 3600
    turn.note(NodeQuarantined(node=node, host=host, hours=hours, reason=outcome.reason))
    if node:
        turn.update(barred=turn.state.barred | {node})


def _host(state: State, node: str) -> str:
    if not node:
        return state.settings.host
    known = state.nodes.get(node) or state.lost_nodes.get(node)
    return "" if known is None else known.host
