"""Carries out faults of nodes, and takes back what lasts only a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from closeranks.drill.nodes.faults import COORDINATOR, ENDS_NODE, OF_NO_NODE, NodeFault, NodeKind, NodeMoment
from closeranks.drill.nodes.namespaces import Cut, NamespaceStand
from closeranks.drill.nodes.ports import listening
from closeranks.drill.nodes.runs import AUTHORITY, NodesRun, closed_step, open_incident
from closeranks.drill.nodes.stand import Stand
from closeranks.drill.nodes.verdict import NodesEvidence

SUPERVISOR: Final = "closeranks.run.supervisor"
CANDIDATE: Final = "closeranks.cluster.candidate"
_POLL_S: Final = 0.05
_BACK_S: Final = 1.0  # a machine that comes back takes a moment, however short the fault


class _Later(NamedTuple):
    at_s: float
    act: Callable[[], None]


class Striker:
    """Strikes one run."""

    def __init__(self, run: NodesRun, faults: tuple[NodeFault, ...]) -> None:
        self._run = run
        self._waiting = list(faults)
        self._due: list[tuple[float, NodeFault]] = []
        self._later: list[_Later] = []
        self.struck: list[NodeFault] = []
        self._struck_s: list[float] = []

    def make(self) -> NodesEvidence:
        """Start the run, strike it, and wait for its end or its timeout."""
        run = self._run
        run.start()
        while time.monotonic() < run.began_s + run.spec.timeout_s and (run.running() or self._later):
            self._look(time.monotonic())
            time.sleep(_POLL_S)
        for later in self._later:
            later.act()
        evidence = run.finish()
        return msgspec.structs.replace(evidence, struck=tuple(self.struck), struck_s=tuple(self._struck_s))

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

    def _strike(self, fault: NodeFault) -> None:
        node = self._run.leader() if fault.node == COORDINATOR else fault.node
        if not self._run.running() or not (fault.kind in OF_NO_NODE or self._run.lives(node)):
            return  # it counts as never struck
        began_s = time.monotonic()
        undo = self._carry_out(fault, node)
        if undo is not None:
            self.struck.append(fault)
            self._struck_s.append(began_s)
            wait_s = max(_BACK_S, fault.for_s) if fault.kind in ENDS_NODE else fault.for_s
            self._later.append(_Later(time.monotonic() + wait_s, undo))

    def _carry_out(self, fault: NodeFault, node: str) -> Callable[[], None] | None:
        """Do it; how it is taken back, None if there was nothing to strike."""
        stand = self._run.stand
        match fault.kind:
            case NodeKind.NODE_KILL:
                stand.kill(node)
                return lambda: self._bring_back(node)
            case NodeKind.NODE_FREEZE:
                stand.freeze(node)
                return lambda: stand.thaw(node)
            case NodeKind.SUPERVISOR_KILL:
                signalled = self._signal(stand.processes(node, SUPERVISOR), signal.SIGKILL)
                return (lambda: self._bring_back(node)) if signalled else None
            case NodeKind.LEAVE:
                signalled = self._signal(stand.processes(node, SUPERVISOR), signal.SIGTERM)
                return (lambda: self._bring_back(node)) if signalled else None
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
        if fault.kind is NodeKind.POWER_OFF:
            stand.power_off(node)

            def power_on() -> None:
                stand.power_on(node)
                self._bring_back(node)

            return power_on
        stand.cut(_cuts(fault, node, stand))
        return stand.heal

    def _bring_back(self, node: str) -> None:
        """The machine comes back, if the run is not over."""
        self._run.stand.kill(node)
        self._run.node_ended(node)
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
