"""The striker against a run and a stand that are played: no process, no clock."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from closeranks.drill.nodes import strikes
from closeranks.drill.nodes.faults import COORDINATOR, NodeFault, NodeKind
from closeranks.drill.nodes.runs import NodesSpec
from closeranks.drill.nodes.strikes import Striker
from closeranks.drill.nodes.verdict import NodesEvidence
from closeranks.events import Record, StepClosed

CLOSED = StepClosed(step=5, began_mono_s=0.0, closed_mono_s=1.0, losses=())
SUPERVISOR_OF = {"n0": 100, "n1": 101, "n2": 102}


class Stand:
    """Each node is a guardian (by its name), a supervisor and a worker."""

    def __init__(self):
        self.alive = {node: [f"guardian-{node}", f"supervisor-{node}", f"worker-{node}"] for node in SUPERVISOR_OF}
        self.done = []

    def processes(self, node, words):
        supervised = words == strikes.SUPERVISOR and f"supervisor-{node}" in self.alive[node]
        return [SUPERVISOR_OF[node]] if supervised else []

    def pids(self, node):
        return self.alive[node]

    def kill(self, node):
        self.done.append(("kill", node))
        self.alive[node] = []

    def power_off(self, node):
        self.done.append(("power_off", node))
        self.alive[node] = []

    def __getattr__(self, what):
        return lambda node: self.done.append((what, node))


class Run:
    spec = NodesSpec(("train.py",), spare_nodes=0, timeout_s=600.0)
    began_s = 0.0

    def __init__(self):
        self.stand = Stand()
        self.ended = []
        self.started = []

    def start(self):
        pass

    def start_job(self):
        self.started.append("all")

    def all_records(self):
        return [Record(seq=0, wall_s=0.0, mono_s=0.0, run="r", node="n0", term=1, event=CLOSED)]

    def leader(self):
        return "n0"

    def running(self):
        return any(self.lives(node) for node in SUPERVISOR_OF)

    def lives(self, node):
        return f"guardian-{node}" in self.stand.alive[node]

    def left(self, node):
        return [f"{node}: {process}" for process in self.stand.alive[node]]

    def kill_guardian(self, node):
        self.stand.alive[node].remove(f"guardian-{node}")

    def node_ended(self, node, *, told_to_leave=False):
        self.ended.append((node, told_to_leave))

    def start_node(self, node):
        self.started.append(node)
        self.stand.alive[node] = [f"guardian-{node}", f"supervisor-{node}"]

    def finish(self):
        return NodesEvidence(runs=())


class Played:
    """A striker whose time goes on when the test says so."""

    def __init__(self, monkeypatch, *faults):
        self.now_s = 0.0
        self.signals = []
        self.run = Run()
        self.striker = Striker(self.run, faults)
        monkeypatch.setattr(strikes, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep))
        monkeypatch.setattr(
            strikes, "_signal_all", lambda pids, number: self.signals.extend((pid, number) for pid in pids)
        )

    def _sleep(self, seconds):
        self.now_s += seconds

    def at(self, now_s):
        self.now_s = now_s
        self.striker._look(now_s)

    def gone(self, node, *, but=()):
        self.run.stand.alive[node] = list(but)


@pytest.fixture
def play(monkeypatch):
    return lambda *faults: Played(monkeypatch, *faults)


def fault(kind, node="n1", *, for_s=1.0, after_s=0.0):
    return NodeFault(kind=kind, node=node, step=5, for_s=for_s, after_s=after_s)


@pytest.mark.parametrize(
    ("kind", "number"), [(NodeKind.LEAVE, signal.SIGTERM), (NodeKind.SUPERVISOR_KILL, signal.SIGKILL)]
)
def test_a_node_that_ends_itself_comes_back_when_it_has_ended_and_not_when_the_fault_is_over(play, kind, number):
    """After 1 s all of it was killed: what it would have left, and how it would have ended, nobody saw."""
    played = play(fault(kind))
    played.at(0.0)
    assert played.signals == [(101, number)]
    played.at(40.0)
    assert (played.run.stand.done, played.run.ended) == ([], [])
    played.gone("n1")
    played.at(40.1)
    assert played.run.ended == [("n1", kind is NodeKind.LEAVE)]
    assert played.run.started == ["n1"]
    assert played.striker._left == []


def test_a_node_that_has_ended_at_once_comes_back_after_its_time(play):
    played = play(fault(NodeKind.LEAVE, for_s=9.0))
    played.at(0.0)
    played.gone("n1")
    played.at(8.9)
    assert played.run.started == []
    played.at(9.0)
    assert played.run.started == ["n1"]


def test_what_outlives_its_guardian_is_left_behind(play):
    played = play(fault(NodeKind.SUPERVISOR_KILL))
    played.at(0.0)
    played.gone("n1", but=["worker-n1"])
    played.at(1.0)
    assert played.striker._left == ["n1: worker-n1 (after supervisor-kill)"]
    assert ("kill", "n1") in played.run.stand.done


def test_a_node_that_never_leaves_is_left_behind_and_comes_back_all_the_same(play):
    played = play(fault(NodeKind.LEAVE))
    played.at(0.0)
    played.at(44.9)
    assert played.run.ended == []
    played.at(45.0)
    assert played.striker._left == [
        f"n1: {process} (after leave)" for process in ("guardian-n1", "supervisor-n1", "worker-n1")
    ]
    assert (played.run.ended, played.run.started) == ([("n1", True)], ["n1"])


def test_while_another_fault_lasts_a_node_has_longer_to_leave(play):
    """What is frozen cannot end: it has its time once it goes on."""
    played = play(fault(NodeKind.LEAVE), fault(NodeKind.NODE_FREEZE, for_s=12.0, after_s=40.0))
    for now_s in (0.0, 40.0, 50.0, 51.9, 52.0, 96.0):
        played.at(now_s)
    assert played.run.stand.done == [("freeze", "n1"), ("thaw", "n1")]
    assert played.run.ended == []
    played.at(97.0)
    assert played.run.ended == [("n1", True)]


def test_the_striker_goes_on_with_other_faults_while_a_node_leaves(play):
    played = play(fault(NodeKind.LEAVE), fault(NodeKind.NODE_KILL, "n2", after_s=3.0))
    played.at(0.0)
    played.at(3.0)
    played.at(4.0)
    assert played.run.started == ["n2"]
    assert [str(one.kind) for one in played.striker.struck] == ["leave", "node-kill"]


def test_a_guardian_is_killed_alone_and_the_rest_has_to_end_itself(play):
    played = play(fault(NodeKind.GUARDIAN_KILL))
    played.at(0.0)
    assert played.run.stand.alive["n1"] == ["supervisor-n1", "worker-n1"]
    played.at(30.0)
    assert played.run.ended == []
    played.gone("n1")
    played.at(30.1)
    assert (played.run.ended, played.run.started, played.striker._left) == ([("n1", False)], ["n1"], [])


def test_a_supervisor_that_outlives_its_guardian_is_left_behind(play):
    played = play(fault(NodeKind.GUARDIAN_KILL))
    played.at(0.0)
    played.at(45.0)
    assert played.striker._left == ["n1: supervisor-n1 (after guardian-kill)", "n1: worker-n1 (after guardian-kill)"]


def test_a_node_that_is_killed_while_it_leaves_need_not_say_how_it_left(play):
    played = play(fault(NodeKind.LEAVE), fault(NodeKind.NODE_KILL, after_s=1.0, for_s=2.0))
    played.at(0.0)
    played.at(1.0)
    played.at(2.9)
    assert played.run.ended == []
    played.at(3.0)
    assert (played.run.ended, played.run.started) == ([("n1", False)], ["n1"])


def test_the_guardian_of_a_killed_supervisor_is_not_killed_before_it_has_ended_the_rest(play):
    """Nobody would be there to end it, and what is left would be held against the run."""
    played = play(fault(NodeKind.SUPERVISOR_KILL), fault(NodeKind.GUARDIAN_KILL, after_s=0.1))
    played.at(0.0)
    played.at(0.1)
    assert played.run.lives("n1")
    assert len(played.striker.struck) == 1


def test_a_node_that_left_comes_back_only_while_the_run_goes_on(play):
    played = play(fault(NodeKind.LEAVE))
    played.at(0.0)
    for node in SUPERVISOR_OF:
        played.gone(node)
    evidence = played.striker.make()
    assert played.run.ended == [("n1", True)]
    assert played.run.started == []
    assert [str(one.kind) for one in evidence.struck] == ["leave"]


def test_a_node_that_still_leaves_when_the_run_is_out_of_time_is_left_behind(play):
    played = play(fault(NodeKind.LEAVE, after_s=590.0))
    evidence = played.striker.make()
    assert len(evidence.left) == 3
    assert played.run.ended == [("n1", True)]
    assert played.run.started == []


def test_a_blackout_looks_at_who_has_left_before_and_starts_all_anew(play):
    played = play(fault(NodeKind.LEAVE), fault(NodeKind.BLACKOUT, after_s=0.5))
    played.at(0.0)
    played.gone("n1")
    played.at(0.5)
    assert played.run.ended[0] == ("n1", True)
    played.at(1.5)
    assert played.run.started == ["all"]


def test_a_machine_without_power_has_it_again_when_it_comes_back(play):
    played = play(fault(NodeKind.POWER_OFF, COORDINATOR))
    played.at(0.0)
    assert played.run.stand.done == [("power_off", "n0")]
    played.at(1.0)
    assert played.run.stand.done[-1] == ("power_on", "n0")
    assert played.run.started == ["n0"]


def test_of_a_node_that_does_not_live_nothing_is_struck(play):
    played = play(fault(NodeKind.LEAVE), fault(NodeKind.SUPERVISOR_KILL))
    played.gone("n1")
    played.at(0.0)
    assert played.striker.struck == []
