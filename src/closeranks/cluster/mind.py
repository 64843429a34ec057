"""The controller in the coordinator: begun anew, or built up from what an earlier coordinator left behind."""

from __future__ import annotations

import time

import msgspec

from closeranks.cluster.announcing import Members
from closeranks.cluster.tenure import Tenure
from closeranks.decide import controller
from closeranks.decide.membership import occupants
from closeranks.decide.protocol import BeginTerm, Begun, Decision, Fact, NodeLost, StartGroup
from closeranks.decide.state import State
from closeranks.run.brain import settings_of
from closeranks.run.options import RunOptions


class Mind:
    """Owns the controller's state while this candidate leads."""

    def __init__(self, options: RunOptions, tenure: Tenure) -> None:
        self._settings = settings_of(options)
        self._tenure = tenure
        self._state: State | None = None

    @property
    def whole(self) -> bool:
        """Whether facts can be taken."""
        return self._state is not None

    @property
    def state(self) -> State:
        """The controller's."""
        if self._state is None:
            raise AssertionError("the controller is not there yet")
        return self._state

    def begin(self) -> tuple[Decision, ...]:
        """The run starts with this coordinator."""
        first_proc = max(1, self._tenure.record.procs_reserved - 1000)
        self._state = msgspec.structs.replace(controller.initial(self._settings), next_proc=first_proc)
        return self.step(Begun())

    def step(self, fact: Fact) -> tuple[Decision, ...]:
        """Take one fact."""
        self._state, decisions = controller.step(self.state, fact, time.monotonic())
        return decisions

    def members_of(self, decision: StartGroup | BeginTerm) -> Members:
        """Who sits where under the term of this decision."""
        if isinstance(decision, StartGroup):
            return Members(decision.term, decision.procs, decision.nodes, self.state.incarnations)
        homes = {proc.proc: proc.node for proc in self.state.procs.values()}
        nodes = tuple(homes.get(proc, place) for proc, place in zip(decision.procs, self.state.places, strict=True))
        return Members(decision.term, decision.procs, nodes, decision.incarnations)

    def first_member(self) -> int:
        """Some process of the newest term, to name where none can be."""
        return next((p.proc for p in occupants(self.state).values()), 0)

    def has_room(self, node: str) -> bool:
        """Whether the seats of this node could be taken over by others."""
        if self._state is None:
            return False
        others = [n for n in self.state.nodes.values() if n.name != node]
        return sum(n.slots for n in others) >= self.state.settings.seats

    def lost(self, node: str, reason: str) -> tuple[Fact, ...]:
        """A node is gone for certain."""
        return (NodeLost(node=node, detail=reason),)
