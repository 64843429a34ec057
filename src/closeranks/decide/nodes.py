"""Nodes that come and go. A run of one node hears nothing of this."""

from __future__ import annotations

from msgspec.structs import replace

from closeranks.decide import blame, endings, membership, sizing, trouble
from closeranks.decide.diagnosis import Seen, Trouble
from closeranks.decide.domains import failed_domain
from closeranks.decide.placement import rank
from closeranks.decide.protocol import NodeFitness, NodeJoined, NodeLost, NodeSilent, Origin
from closeranks.decide.state import Life, Node, Proc, Stage, State
from closeranks.decide.turn import Turn
from closeranks.events import ErrorSeen

_NAMED_MAX = 3
_KEEPS_SPARES = frozenset({Life.JOINING, Life.REGROUPING, Life.RESTORING, Life.RUNNING})


def assemble(turn: Turn) -> None:
    """Start the first group once the nodes for it are there."""
    if turn.state.settings.nodes_needed:
        turn.enter(Life.ASSEMBLING)
    _start_when_assembled(turn)


def _start_when_assembled(turn: Turn) -> None:
    state = turn.state
    if (_first_are_there(state) or _waited(turn)) and membership.layout(state) is not None:
        membership.start_group(turn, Origin.NOTHING if state.saved_step is None else Origin.NEWEST)


def _first_are_there(state: State) -> bool:
    """The nodes that are meant to hold seats, and not a spare one that was quicker."""
    needed = state.settings.nodes_needed
    return len(state.nodes) >= needed and all(f"n{k}" in state.nodes for k in range(needed))


def _waited(turn: Turn) -> bool:
    return turn.now_s - turn.state.since_s >= turn.state.settings.deadlines.first_nodes_s


def assembling_late(turn: Turn) -> None:
    """The first nodes are not waited for any longer where others can take their place; else say who is missing."""
    _start_when_assembled(turn)
    if turn.state.life is not Life.ASSEMBLING:
        return
    settings, allowed_s = turn.state.settings, turn.state.settings.deadlines.nodes_s
    if turn.now_s - turn.state.since_s < allowed_s:
        return
    fewer = sizing.fewer_seats(turn.state)
    if fewer:
        shortage = f"{_shortage(turn.state)} within {allowed_s:g} s"
        detail = f"{shortage}: the run begins with {fewer} of {settings.seats} seats"
        turn.note(ErrorSeen(detector=Seen.NO_ROOM.value, seat=None, proc=None, detail=detail))
        turn.update(shrunk_to=fewer)
        _start_when_assembled(turn)
    else:
        reason = f"{_shortage(turn.state)} within {allowed_s:g} s; {_present(turn.state)}"
        endings.fail(turn, 1, f"{reason}; start the missing ones, or ask for fewer with --nnodes")


def _shortage(state: State) -> str:
    needed, seats = state.settings.nodes_needed, state.settings.seats
    if len(state.nodes) < needed:
        missing = [name for k in range(needed) if (name := f"n{k}") not in state.nodes]
        return f"{len(state.nodes)} of {needed} nodes joined, {', '.join(missing)} did not"
    slots = sum(node.slots for node in state.nodes.values())
    return f"{len(state.nodes)} nodes joined, with room for {slots} of {seats} seats"


def _present(state: State) -> str:
    """The nodes that are counted with, and why others that came are not."""
    there, down = ", ".join(sorted(state.nodes, key=rank)) or "none", sorted(state.turned_down, key=rank)
    reasons = "".join(f"; {name} cannot take workers: {state.turned_down[name]}" for name in down[:_NAMED_MAX])
    more = f"; nor can {len(down) - _NAMED_MAX} more" if len(down) > _NAMED_MAX else ""
    return f"there are: {there}{reasons}{more}"


def joined(turn: Turn, fact: NodeJoined) -> None:
    """A node is there, empty."""
    state = turn.state
    if not state.settings.nodes_needed or fact.node in state.nodes or fact.slots < 1:
        return
    node = Node(name=fact.node, slots=fact.slots, domains=dict(fact.domains), host=fact.host)
    if not blame.let_in(turn, node):
        return
    turn.update(
        nodes={**state.nodes, node.name: node},
        lost_nodes={name: gone for name, gone in state.lost_nodes.items() if name != node.name},
        turned_down={name: why for name, why in state.turned_down.items() if name != node.name},
    )
    make_use(turn, node.name)


def make_use(turn: Turn, name: str) -> None:
    """A node can be reached and has room: for seats that wait for it, or for spares."""
    state = turn.state
    if state.life is Life.ASSEMBLING:
        _start_when_assembled(turn)
    elif state.life is Life.GATHERING:
        trouble.fill_from(turn, name)
    elif state.life is Life.CLEARING:
        trouble.start_when_clear(turn)
    elif state.life in _KEEPS_SPARES and state.group.joined_s is not None and not (state.incident or state.stop):
        membership.refill_spares(turn)


def fitness(turn: Turn, fact: NodeFitness) -> None:
    """What the node has it keeps; something new goes there only where no other node has room."""
    node, unfit = turn.state.nodes.get(fact.node), bool(fact.unfit)
    if node is None and unfit:
        turn.update(turned_down={**turn.state.turned_down, fact.node: fact.unfit})
    if node is None or node.unfit == unfit:
        return
    turn.update(nodes={**turn.state.nodes, node.name: replace(node, unfit=unfit)})
    if not unfit and node.open:
        make_use(turn, node.name)


def silent(turn: Turn, fact: NodeSilent) -> None:
    """Nothing is started there, and nothing is expected of it in time, until it is back or lost."""
    node = turn.state.nodes.get(fact.node)
    if node is not None and not node.silent:
        turn.update(nodes={**turn.state.nodes, node.name: replace(node, silent=True)})
        detail = f"{node.name} is out of reach: {fact.detail}"
        turn.note(ErrorSeen(detector=Seen.SILENCE.value, seat=None, proc=None, detail=detail))


def lost(turn: Turn, fact: NodeLost) -> None:
    """A node is gone, with all that ran there: one loss, however many seats it held."""
    state = turn.state
    node = state.nodes.get(fact.node)
    if node is None:
        return
    left = {name: other for name, other in state.nodes.items() if name != node.name}
    turn.update(nodes=left, lost_nodes={**state.lost_nodes, node.name: node})
    here = [p for p in state.procs.values() if p.node == node.name]
    members = tuple(p for p in here if p.seat is not None and p.stage is not Stage.DOOMED)
    turn.drop(*(proc for proc in here if proc not in members))
    if members:
        over = "the last step was closed everywhere before" if state.life is Life.LEAVING else ""
        found = _trouble(state, node, members, fact.detail)
        trouble.meet(turn, found, gone=members, hopeless=over or fact.hopeless)
        if turn.state.short_since_s == turn.now_s:  # it is the missing node, and was waited for as such
            turn.update(short_since_s=turn.now_s - fact.waited_s)
        return
    detail = f"{node.name} {'has left' if node.let_go else 'was lost'}: {fact.detail}"
    turn.note(ErrorSeen(detector=Seen.NODE.value, seat=None, proc=None, detail=detail))
    trouble.start_when_clear(turn)
    trouble.regroup_when_gathered(turn)


def _trouble(state: State, node: Node, members: tuple[Proc, ...], detail: str) -> Trouble:
    seats = tuple(sorted(p.seat for p in members if p.seat is not None))
    if node.let_go:
        told = f"{node.name} with seats {list(seats)} has left, as it was told to: {detail}"
        return Trouble(seen=Seen.LEFT, detail=told, seats=seats, node=node.name)
    before = () if state.incident is None else state.incident.nodes
    others = [state.lost_nodes[name] for name in before if name in state.lost_nodes]
    living = [other for other in state.nodes.values() if other.name != node.name]
    domain = failed_domain(node, others, living)
    told = f"{node.name} with seats {list(seats)} was lost: {detail}"
    if domain:
        together = ", ".join(sorted({node.name, *(other.name for other in others)}, key=rank))
        told = f"{told}; {domain} failed as one, {together} were lost in this incident"
    return Trouble(seen=Seen.NODE, detail=told, seats=seats, node=node.name, domain=domain)


def check_room(turn: Turn) -> None:
    """Seats have waited for a node as long as they may."""
    state, patience_s = turn.state, turn.state.settings.node_patience_s
    since_s = state.short_since_s
    if state.life not in (Life.GATHERING, Life.CLEARING) or since_s is None or turn.now_s - since_s < patience_s:
        return
    roomless = sorted(set(range(state.seats)) - set(membership.occupants(state)) - set(membership.placements(state)))
    detail = f"no node with room for seats {roomless} came within {patience_s:g} s; {_present(state)}"
    found = Trouble(seen=Seen.NO_ROOM, detail=detail, allowed_s=patience_s, fewer_seats=sizing.fewer_seats(state))
    trouble.meet(turn, found, hopeless="" if found.fewer_seats else _way_out(state))


def _way_out(state: State) -> str:
    start = "start another node for this run, or the run again with fewer"
    if state.settings.nodes_min and sizing.would_lose(state):
        return f"it does not go on with fewer, for nothing was saved that they could begin with (--store); {start}"
    return start
