"""What can happen to whole nodes, and random draws of it. Pure."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Final

import msgspec


class NodeKind(StrEnum):
    """What a drill can do to a node, or to what joins the nodes."""

    NODE_KILL = "node-kill"  # SIGKILL to all its processes at one instant
    NODE_FREEZE = "node-freeze"  # SIGSTOP to all its processes, for a while
    SUPERVISOR_KILL = "supervisor-kill"  # its guardian ends the rest
    SUPERVISOR_FREEZE = "supervisor-freeze"  # its workers run on
    COORDINATOR_KILL = "coordinator-kill"  # only the process that leads
    COORDINATOR_FREEZE = "coordinator-freeze"
    AUTHORITY_OUTAGE = "authority-outage"  # it answers nobody, for a while
    POWER_OFF = "power-off"  # nobody hears of it
    CUT_OFF = "cut-off"  # no packet from or to the node, for a while
    CUT_HALF = "cut-half"  # the node and the next one are cut off from the others
    DEAF = "deaf"  # nothing arrives at the node, what it sends does
    MUTE = "mute"  # nothing that it sends arrives
    DATA_CUT = "data-cut"  # only what workers say to each other is lost
    CONTROL_CUT = "control-cut"  # only what supervisors and coordinator say to each other is lost
    LOSSES = "losses"  # some of the node's packets are lost
    LEAVE = "leave"  # SIGTERM to its supervisor: it hands its seats over, and ends
    BLACKOUT = "blackout"  # all nodes lose power at one instant; the job is started anew, and goes on from its store
    GUARDIAN_KILL = "guardian-kill"  # SIGKILL to the command itself: the supervisor below it ends the rest


class NodeMoment(StrEnum):
    """When a fault strikes."""

    STEP = "step"  # once that step is closed
    RECOVERY = "recovery"  # while an incident is open, after the step


# What is left of the node has to end by itself: nobody else ends it.
ENDS_ITSELF: Final = frozenset({NodeKind.SUPERVISOR_KILL, NodeKind.LEAVE, NodeKind.GUARDIAN_KILL})
ENDS_NODE: Final = ENDS_ITSELF | {NodeKind.NODE_KILL, NodeKind.POWER_OFF, NodeKind.BLACKOUT}
NEEDS_NETWORK: Final = frozenset(
    {NodeKind.POWER_OFF, NodeKind.CUT_OFF, NodeKind.CUT_HALF, NodeKind.DEAF, NodeKind.MUTE, NodeKind.DATA_CUT}
    | {NodeKind.CONTROL_CUT, NodeKind.LOSSES}
)
OF_COORDINATOR: Final = frozenset({NodeKind.COORDINATOR_KILL, NodeKind.COORDINATOR_FREEZE})
OF_NO_NODE: Final = frozenset({NodeKind.AUTHORITY_OUTAGE, NodeKind.BLACKOUT})
# After these a node may be on the wrong side: others go on without it, whichever the drill has struck.
PARTS_NODES: Final = NEEDS_NETWORK - {NodeKind.POWER_OFF} | {NodeKind.AUTHORITY_OUTAGE}
COORDINATOR: Final = "coordinator"  # as a node: whichever leads at that time
_SECOND: Final = 0.6  # of all rounds have a second fault
_AMID: Final = 0.6  # of these strike while the first is recovered from


class NodeFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Strikes once. A node that was ended is started anew, as a machine that comes back, ``for_s`` later."""

    kind: NodeKind
    node: str  # "n1", or "coordinator"; unused where no single node is struck
    step: int
    moment: NodeMoment = NodeMoment.STEP
    after_s: float = 0.0  # between the moment and the strike
    for_s: float = 5.0
    percent: int = 20  # of the packets, where some are lost

    def __str__(self) -> str:
        """For example ``node-kill of n1 after step 7, for 3.2 s``."""
        whom = "" if self.kind in OF_COORDINATOR | OF_NO_NODE else f" of {self.node}"
        amid = " in the recovery that follows" if self.moment is NodeMoment.RECOVERY else ""
        later = f" + {1000 * self.after_s:.0f} ms" if self.after_s else ""
        return f"{self.kind}{whom} after step {self.step}{amid}{later}, for {self.for_s:.1f} s"


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """Where faults may strike."""

    nodes: tuple[str, ...]  # with seats, and spare ones
    steps: int
    outage: bool  # the authority can be made to be silent
    network: bool  # links can be cut
    saves: bool = False  # a job that is started anew can go on
    only: tuple[NodeKind, ...] = ()  # no others are wanted; empty: all


def drawn(seed: int, field: Field) -> tuple[NodeFault, ...]:
    """One fault, or two; the same seed draws the same."""
    draw = random.Random(f"nodes/{seed}")  # noqa: S311 - no secret
    first = _one(draw, field, NodeMoment.STEP, draw.randrange(1, max(2, field.steps // 2)))
    if draw.random() >= _SECOND:
        return (first,)
    moment = NodeMoment.RECOVERY if draw.random() < _AMID else NodeMoment.STEP
    step = first.step if moment is NodeMoment.RECOVERY else draw.randrange(first.step, max(first.step + 1, field.steps))
    return (first, _one(draw, field, moment, step))


def kinds_in(field: Field) -> list[NodeKind]:
    """The kinds that are wanted, and can be carried out there."""
    without = set() if field.network else set(NEEDS_NETWORK)
    without |= set() if field.outage else {NodeKind.AUTHORITY_OUTAGE}
    without |= set() if field.saves else {NodeKind.BLACKOUT}
    return [kind for kind in field.only or NodeKind if kind not in without]


def _one(draw: random.Random, field: Field, moment: NodeMoment, step: int) -> NodeFault:
    kind = draw.choice(kinds_in(field))
    node = COORDINATOR if kind in OF_COORDINATOR or draw.random() < 1 / 4 else draw.choice(field.nodes)
    # Shorter than a lease, about as long, and much longer: all three must be survived.
    for_s = draw.choice((draw.uniform(0.2, 2.0), draw.uniform(2.5, 5.0), draw.uniform(6.0, 12.0)))
    after_s = draw.uniform(0.0, 1.0)
    return NodeFault(kind=kind, node=node, step=step, moment=moment, after_s=after_s, for_s=for_s)
