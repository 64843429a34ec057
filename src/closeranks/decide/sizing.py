"""How many seats the group has: fewer where nodes do not come in time, more again when they are there at a restart."""

from __future__ import annotations

from collections.abc import Collection

from closeranks.decide.state import State
from closeranks.decide.turn import Turn
from closeranks.events import Decided


def fewer_seats(state: State, *, without: Collection[str] = ()) -> int:
    """How many seats the nodes that are there, ``without`` some of them, can go on with in place of all.

    0: that is not allowed, or what was trained would be lost by it.
    """
    nodes, seats = _room(state, without)
    allowed = 0 < state.settings.nodes_min <= nodes
    return seats if allowed and seats < state.seats and not would_lose(state) else 0


def would_lose(state: State) -> bool:
    """Whether a new group would begin without what this one has done. A script without the library goes its own way."""
    return state.saved_step is None and state.library and state.group.newest_step >= 0


def grow(turn: Turn) -> None:
    """A group that is about to start again takes back seats that were given up, as far as there are nodes for them."""
    state = turn.state
    _, seats = _room(state, state.last_choices)  # those are for want of others, and not to grow on
    if seats <= state.seats:
        return
    turn.update(shrunk_to=0 if seats == state.settings.seats else seats)
    incident = state.incident
    if incident is not None:
        reason = f"nodes have come meanwhile: the group starts again with {seats} seats in place of {state.seats}"
        turn.note(Decided(incident=incident.number, rung=incident.rung, term=state.term + 1, reason=reason))


def _room(state: State, without: Collection[str]) -> tuple[int, int]:
    """Nodes that can be reached and hold an equal share, and the seats that they have room for together."""
    full = [n for n in state.nodes.values() if n.open and n.slots >= state.seats_each and n.name not in without]
    return len(full), min(len(full) * state.seats_each, state.settings.seats)
