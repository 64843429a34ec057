"""Carries out faults of nodes, and takes back what lasts only a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from closeranks.drill.nodes.faults import (
    COORDINATOR,
    ENDS_ITSELF,
    ENDS_NODE,
    OF_NO_NODE,
    NodeFault,
    NodeKind,
    NodeMoment,
)
from closeranks.drill.nodes.namespaces import Cut, NamespaceStand
from closeranks.drill.nodes.ports import listening
from closeranks.drill.nodes.runs import AUTHORITY, NodesRun, closed_step, open_incident
from closeranks.drill.nodes.stand import Stand
from closeranks.drill.nodes.verdict import NodesEvidence

SUPERVISOR: Final = "closeranks.run.supervisor"
CANDIDATE: Final = "closeranks.cluster.candidate"
_POLL_S: Final = 0.05
_BACK_S: Final = 1.0  # a machine that comes back takes a moment, however short the fault
_END_S: Final = 45.0  # for a node to end by itself: --grace, by default 30 s, and what is done after it


class _Later(NamedTuple):
    at_s: float
    act: Callable[[], None]


class _Going(NamedTuple):
    """A node that was ended, and comes back."""

    kind: NodeKind
    back_s: float  # not before
    patience_s: float  # until then it may still be ending by itself


class Striker:
    """Strikes one run."""

    def __init__(self, run: NodesRun, faults: tuple[NodeFault, ...]) -> None:
        self._run = run
        self._waiting = list(faults)
        self._due: list[tuple[float, NodeFault]] = []
        self._later: list[_Later] = []
        self._going: dict[str, _Going] = {}
        self._left: list[str] = []
        self.struck: list[NodeFault] = []
        self._struck_s: list[float] = []

    def make(self) -> NodesEvidence:
        """Start the run, strike it, and wait for its end or its timeout."""
        run = self._run
        run.start()
        while time.monotonic() < run.began_s + run.spec.timeout_s and (run.running() or self._later or self._going):
            self._look(time.monotonic())
            time.sleep(_POLL_S)
        for later in self._later:
            later.act()
        for node in list(self._going):
            self._end(node)
        evidence = run.finish()
        return msgspec.structs.replace(
            evidence,
            struck=tuple(self.struck),
            struck_s=tuple(self._struck_s),
            left=(*self._left, *evidence.left),
        )

    def _look(self, now_s: float) -> None:
        if self._waiting:
            records = self._run.all_records()
            closed, incident = closed_step(records), open_incident(records)
            for fault in list(self._waiting):
                amid = fault.moment is not NodeMoment.RECOVERY or incident
                if closed >= fault.step and amid:
                    self._waiting.remove(fault)
                    self._due.append((now_s + fault.after_s, fault))
        for at_s, fault in list(self._due):
            if at_s <= now_s:
                self._due.remove((at_s, fault))
                self._strike(fault)
        for later in list(self._later):
            if later.at_s <= now_s:
                self._later.remove(later)
                later.act()
        for node in list(self._going):
            self._await(node, now_s)

    def _await(self, node: str, now_s: float) -> None:
        """Let a node that was ended come back when it is due, and is gone or has had its time."""
        going = self._going[node]
        if self._later:  # what is frozen or cut off cannot end, or not leave in order
            going = self._going[node] = going._replace(patience_s=now_s + _END_S)
        if now_s >= going.back_s and (now_s >= going.patience_s or self._is_gone(node, going.kind)):
            self._end(node)
            self._bring_back(node)

    def _is_gone(self, node: str, kind: NodeKind) -> bool:
        match kind:
            case NodeKind.LEAVE | NodeKind.SUPERVISOR_KILL:  # the guardian ends what is left before it ends itself
                return not self._run.lives(node)
            case NodeKind.GUARDIAN_KILL:
                return not self._run.stand.pids(node)
            case _:
                return True

    def _strike(self, fault: NodeFault) -> None:
        node = self._run.leader() if fault.node == COORDINATOR else fault.node
        if not self._run.running() or not (fault.kind in OF_NO_NODE or self._can_strike(node, fault.kind)):
            return  # it counts as never struck
        began_s = time.monotonic()
        if self._end_node(fault, node) if fault.kind in ENDS_NODE - OF_NO_NODE else self._disturb(fault, node):
            self.struck.append(fault)
            self._struck_s.append(began_s)

    def _can_strike(self, node: str, kind: NodeKind) -> bool:
        """What dies already is not killed again: whoever ends what is left of it would be missing."""
        going = self._going.get(node)
        dies = going is not None and going.kind is not NodeKind.LEAVE
        return self._run.lives(node) and not (dies and kind in ENDS_NODE)

    def _end_node(self, fault: NodeFault, node: str) -> bool:
        """End it, or have it end, to come back later; False if there was nothing to strike."""
        stand = self._run.stand
        match fault.kind:
            case NodeKind.NODE_KILL:
                stand.kill(node)
            case NodeKind.POWER_OFF:
                stand.power_off(node)
            case NodeKind.GUARDIAN_KILL:
                self._run.kill_guardian(node)
            case kind:
                number = signal.SIGTERM if kind is NodeKind.LEAVE else signal.SIGKILL
                if not self._signal(stand.processes(node, SUPERVISOR), number):
                    return False
        now_s = time.monotonic()
        back_s = now_s + max(_BACK_S, fault.for_s)
        self._going[node] = _Going(fault.kind, back_s, now_s + _END_S)
        return True

    def _disturb(self, fault: NodeFault, node: str) -> bool:
        """Do what is taken back later; False if there was nothing to strike."""
        undo = self._carry_out(fault, node)
        if undo is not None:
            wait_s = max(_BACK_S, fault.for_s) if fault.kind is NodeKind.BLACKOUT else fault.for_s
            self._later.append(_Later(time.monotonic() + wait_s, undo))
        return undo is not None

    def _carry_out(self, fault: NodeFault, node: str) -> Callable[[], None] | None:
        """Do it; how it is taken back, None if there was nothing to strike."""
        stand = self._run.stand
        match fault.kind:
            case NodeKind.NODE_FREEZE:
                stand.freeze(node)
                return lambda: stand.thaw(node)
            case NodeKind.SUPERVISOR_FREEZE:
                return self._freeze(stand.processes(node, SUPERVISOR))
            case NodeKind.COORDINATOR_KILL:
                return _nothing if self._signal(coordinator_on(stand, node), signal.SIGKILL) else None
            case NodeKind.COORDINATOR_FREEZE:
                return self._freeze(coordinator_on(stand, node))
            case NodeKind.AUTHORITY_OUTAGE:
                self._run.silence_authority()
                return self._run.restore_authority
            case NodeKind.BLACKOUT:
                return self._black_out()
            case _:
                return self._cut(fault, node) if isinstance(stand, NamespaceStand) else None

    def _black_out(self) -> Callable[[], None]:
        for later in self._later:  # what an earlier fault has left to take back would strike the new job
            later.act()
        self._later.clear()
        for node, going in list(self._going.items()):
            if self._is_gone(node, going.kind):
                self._end(node)
        self._going.clear()  # they come back with the others
        stand, nodes = self._run.stand, self._run.spec.nodes
        for node in nodes:  # first all of them: nobody is to see another one end
            stand.freeze(node)
        for node in nodes:
            stand.power_off(node)
            self._run.node_ended(node)

        def start_anew() -> None:
            for node in nodes:
                stand.power_on(node)
            self._run.start_job()

        return start_anew

    def _cut(self, fault: NodeFault, node: str) -> Callable[[], None]:
        stand = self._run.stand
        assert isinstance(stand, NamespaceStand), "only such a stand is asked for cuts"
        stand.cut(_cuts(fault, node, stand))
        return stand.heal

    def _end(self, node: str) -> None:
        """Nothing of the node is left after this; what should have ended by itself is remembered."""
        kind = self._going.pop(node).kind
        if kind in ENDS_ITSELF:
            self._left += [f"{one} (after {kind})" for one in self._run.left(node)]
        self._run.stand.kill(node)
        self._run.node_ended(node, told_to_leave=kind is NodeKind.LEAVE)

    def _bring_back(self, node: str) -> None:
        """The machine comes back, if the run is not over."""
        self._run.stand.power_on(node)
        if self._run.running():
            self._run.start_node(node)

    def _freeze(self, pids: list[int]) -> Callable[[], None] | None:
        _signal_all(pids, signal.SIGSTOP)
        return (lambda: _signal_all(pids, signal.SIGCONT)) if pids else None

    def _signal(self, pids: list[int], number: signal.Signals) -> bool:
        _signal_all(pids, number)
        return bool(pids)


def coordinator_on(stand: Stand, node: str) -> list[int]:
    """The process of the node that leads, or seeks to: further candidates wait for its end and listen nowhere."""
    return [pid for pid in stand.processes(node, CANDIDATE) if listening([pid])]


def _cuts(fault: NodeFault, node: str, stand: NamespaceStand) -> list[Cut]:
    others = [other for other in stand.nodes if other != node]
    match fault.kind:
        case NodeKind.CUT_HALF:
            nodes = [other for other in stand.nodes if other != AUTHORITY]
            return stand.apart({node, nodes[(nodes.index(node) + 1) % len(nodes)]})
        case NodeKind.DEAF:
            return [Cut(other, node) for other in others]
        case NodeKind.MUTE:
            return [Cut(node, other) for other in others]
        case NodeKind.LOSSES:
            return [cut._replace(percent=fault.percent) for cut in stand.apart({node})]
        case NodeKind.DATA_CUT:
            return [cut._replace(but_ports=_control_ports(stand)) for cut in stand.apart({node})]
        case NodeKind.CONTROL_CUT:
            return [cut._replace(only_ports=_control_ports(stand)) for cut in stand.apart({node})]
        case _:
            return stand.apart({node})


def _control_ports(stand: NamespaceStand) -> frozenset[int]:
    """Where supervisors, coordinators and the authority listen at this moment."""
    speakers = [pid for node in stand.nodes for word in (SUPERVISOR, CANDIDATE) for pid in stand.processes(node, word)]
    return listening(speakers + stand.pids(AUTHORITY))


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _nothing() -> None:
    """What was killed is replaced by the run itself."""
