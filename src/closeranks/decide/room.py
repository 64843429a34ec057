"""Room for the seats of a node that is lost: worked out once, and asked of every node that is silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from closeranks.decide.membership import empty_seats, occupants
from closeranks.decide.state import State


class Room(NamedTuple):
    """Slots and seats, as they are in one state."""

    free: Mapping[str, int]  # by node that can be reached: slots that hold no seat
    held: Mapping[str, int]  # by node: seats
    waiting: int  # seats that nobody sits in or is meant for
    total: int  # of free

    def replaces(self, *nodes: str) -> bool:
        """Whether the other nodes have room for the seats of these, and for those that wait already."""
        free, held = (sum(slots.get(node, 0) for node in nodes) for slots in (self.free, self.held))
        return self.total - free >= held + self.waiting


def room(state: State) -> Room:
    """The room that there is on nodes that can be reached and are to stay."""
    held = Counter(proc.node for proc in occupants(state).values())
    reached = (node for node in state.nodes.values() if node.open)
    free = {node.name: max(0, node.slots - held[node.name]) for node in reached}
    return Room(free, held, len(empty_seats(state)), sum(free.values()))
