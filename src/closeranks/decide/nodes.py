"""Nodes that come and go. A run of one node hears nothing of this."""

from __future__ import annotations

from closeranks.decide import endings, membership
from closeranks.decide.placement import first_layout, rank
from closeranks.decide.protocol import NodeJoined, NodeLost, Origin
from closeranks.decide.state import Life, Node, State
from closeranks.decide.turn import Turn


def assemble(turn: Turn) -> None:
    """Start the first group once the nodes for it are there."""
    if turn.state.settings.nodes_needed:
        turn.enter(Life.ASSEMBLING)
    _start_when_assembled(turn)


def _start_when_assembled(turn: Turn) -> None:
    state = turn.state
    slots = {node.name: node.slots for node in state.nodes.values()}
    if state.settings.nodes_needed and not first_layout(state.settings.seats, slots, state.settings.nodes_needed):
        return
    membership.start_group(turn, Origin.NOTHING if state.saved_step is None else Origin.NEWEST)


def assembling_late(turn: Turn) -> None:
    """Too few nodes came in time: say which."""
    settings = turn.state.settings
    if turn.now_s - turn.state.since_s >= settings.deadlines.nodes_s:
        there = ", ".join(sorted(turn.state.nodes, key=rank)) or "none"
        reason = f"{_shortage(turn.state)} within {settings.deadlines.nodes_s:g} s; there are: {there}"
        endings.fail(turn, 1, f"{reason}; start the missing ones, or ask for fewer with --nnodes")


def _shortage(state: State) -> str:
    needed, seats = state.settings.nodes_needed, state.settings.seats
    if len(state.nodes) < needed:
        missing = [name for k in range(needed) if (name := f"n{k}") not in state.nodes]
        return f"{len(state.nodes)} of {needed} nodes joined, {', '.join(missing)} did not"
    slots = sum(node.slots for node in state.nodes.values())
    return f"{len(state.nodes)} nodes joined, with room for {slots} of {seats} seats"


def joined(turn: Turn, fact: NodeJoined) -> None:
    """A node is there, empty."""
    state = turn.state
    if not state.settings.nodes_needed or fact.node in state.nodes or fact.slots < 1:
        return
    node = Node(name=fact.node, slots=fact.slots, domains=dict(fact.domains))
    turn.update(nodes={**state.nodes, node.name: node})
    if state.life is Life.ASSEMBLING:
        _start_when_assembled(turn)


def lost(turn: Turn, fact: NodeLost) -> None:
    """A node is gone, with all that ran there."""
    state = turn.state
    if fact.node in state.nodes:
        turn.update(nodes={name: node for name, node in state.nodes.items() if name != fact.node})
