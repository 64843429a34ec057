"""Nodes that were told to leave: their seats go elsewhere between two steps, and then the node may end.

Where nothing can take the seats, the whole run stops in order instead: it can be gone on with from what it saves then.
"""

from __future__ import annotations

from msgspec.structs import replace

from closeranks.decide import endings, membership, sizing
from closeranks.decide.diagnosis import Seen
from closeranks.decide.protocol import LetNodeGo, NodeLeaves, StopAsked
from closeranks.decide.room import room
from closeranks.decide.state import Life, Node, State
from closeranks.decide.turn import Turn
from closeranks.events import ErrorSeen


def asked(turn: Turn, fact: NodeLeaves) -> None:
    """A node is to leave; it is given nothing new. One without seats may go at once."""
    node = turn.state.nodes.get(fact.node)
    if node is None or node.leaving:
        return
    turn.update(nodes={**turn.state.nodes, node.name: replace(node, leaving=fact.signal)})
    detail = f"{node.name} was told to leave: its seats go elsewhere between two steps"
    turn.note(ErrorSeen(detector=Seen.LEFT.value, seat=None, proc=None, detail=detail))
    let_go(turn, between_steps=not turn.state.library)  # a script without the library has no steps


def let_go(turn: Turn, *, between_steps: bool) -> None:
    """Let nodes that are to leave go: those without seats, and between steps also those whose seats others can take."""
    state = turn.state
    leaving = [node for node in state.nodes.values() if node.leaving and not node.let_go]
    seated = [node for node in leaving if _holds_seats(state, node)]
    calm = between_steps and state.life in (Life.RUNNING, Life.JOINING) and not (state.incident or state.stop)
    if seated and calm and not _can_do_without(state, tuple(node.name for node in seated)):
        endings.stop_asked(turn, StopAsked(signal=seated[0].leaving, now=False))
        return
    for node in leaving:
        if node not in seated or calm:
            turn.update(nodes={**turn.state.nodes, node.name: replace(node, let_go=True)})
            turn.decide(LetNodeGo(node=node.name))


def _holds_seats(state: State, node: Node) -> bool:
    return any(proc.node == node.name for proc in membership.occupants(state).values())


def _can_do_without(state: State, names: tuple[str, ...]) -> bool:
    return room(state).replaces(*names) or sizing.fewer_seats(state, without=names) > 0
