"""Jobs on several nodes whose parts are lost: on loopback, by the real command line."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from authority.etcd_stand import needs_etcd
from closeranks.drill.nodes.ports import listening
from closeranks.drill.nodes.runs import AUTHORITY, NodesRun, closed_step
from closeranks.drill.nodes.strikes import SUPERVISOR, coordinator_on
from closeranks.drill.nodes.verdict import NodesEvidence, applied_twice, two_coordinators
from closeranks.events import (
    CoordinatorBegan,
    CoordinatorFollowed,
    Diagnosed,
    ErrorSeen,
    Event,
    IncidentClosed,
    IncidentOpened,
    NodeAccepted,
    NodeChecked,
    NodeGone,
    ProcessReady,
    ProcessStarted,
    RunEnded,
    TermBegan,
)
from closeranks.launch.outcome import NODE_ALONE
from cluster.conftest import HOLD, STEPS

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

WITHIN_S = 90.0  # on a busy machine; nothing waits for it to pass


@needs_etcd
def test_what_touches_no_worker_costs_no_step(begin, undisturbed):
    """Strangers call the coordinator, the authority is silent, and the coordinator's process is killed."""
    run = begin("etcd")
    wait_until_held(run)
    (candidate,) = coordinator_on(run.stand, run.leader())
    with_strangers(listening([candidate]))
    run.stand.freeze(AUTHORITY)
    os.kill(candidate, signal.SIGKILL)
    run.stand.thaw(AUTHORITY)
    wait_for(run, lambda: all(newest_epoch(run, node) >= 2 for node in run.spec.nodes))
    evidence = finish(run)
    assert [seen.steps_lost for seen in events(evidence, IncidentClosed)] == []
    assert {seen.term for seen in events(evidence, TermBegan)} == {1}
    assert finals(evidence) == undisturbed
    require_each_update_once(evidence)
    for node in evidence.runs:  # each was tried before it offered its slots
        checked = [record.event for record in node.records if isinstance(record.event, NodeChecked)]
        assert [event.outcomes["storage"] for event in checked] == ["passed"]


def test_a_lost_node_is_replaced_though_the_coordinator_dies_amid_the_recovery(begin, undisturbed):
    run = begin("sqlite")
    wait_until_held(run)
    leader = run.leader()
    victim = next(node for node in seated(run) if node != leader)
    run.stand.kill(victim)
    run.node_ended(victim)
    wait_for(run, lambda: events_so_far(run, IncidentOpened))
    (candidate,) = coordinator_on(run.stand, leader)
    os.kill(candidate, signal.SIGKILL)
    evidence = finish(run)
    assert {seen.outcome for seen in events(evidence, RunEnded)} == {"completed"}
    assert finals(evidence) == undisturbed
    require_each_update_once(evidence)


def test_a_frozen_supervisor_finds_its_seat_taken_and_waits_as_a_spare(begin, undisturbed):
    run = begin("sqlite")
    wait_until_held(run)
    victim = next(node for node in seated(run) if node != run.leader())
    (supervisor,) = run.stand.processes(victim, SUPERVISOR)
    leader = run.leader()

    def accepted() -> int:
        return sum(seen.node == victim for seen in events_at(run, leader, NodeAccepted))

    before = accepted()
    os.kill(supervisor, signal.SIGSTOP)
    wait_for(run, lambda: any(seen.node == victim for seen in events_at(run, leader, NodeGone)))
    os.kill(supervisor, signal.SIGCONT)
    wait_for(run, lambda: accepted() > before)
    evidence = finish(run)
    assert {seen.outcome for seen in events(evidence, RunEnded)} == {"completed"}
    assert finals(evidence) == undisturbed
    require_each_update_once(evidence)


def test_a_node_is_told_to_leave_and_the_job_goes_on_without_it(begin, undisturbed):
    """The leading one, unless the spare node was quicker: it hands over the lead, then its seat; no step is lost."""
    run = begin("sqlite", "--grace", "120s", again=HOLD + 3)
    wait_until_held(run)
    leader = run.leader()
    victim = leader if leader in seated(run) else seated(run)[0]
    (supervisor,) = run.stand.processes(victim, SUPERVISOR)
    os.kill(supervisor, signal.SIGTERM)
    wait_for(run, lambda: any(seen.detector == "left" for seen in events_so_far(run, ErrorSeen)))
    (run.folder.parent / "go").touch()
    wait_for(run, lambda: any(seen.node == victim for seen in events_so_far(run, NodeGone)))
    (run.folder.parent / "again").touch()
    wait_for(run, lambda: not run.running())
    evidence = run.finish()
    assert evidence.left == ()
    ends = {one.node: one.exit_code for one in evidence.runs}
    assert ends == dict.fromkeys(run.spec.nodes, 0) | {victim: 128 + signal.SIGTERM}, outputs(evidence)
    handed_over = any("given the lead up" in seen.reason for seen in events(evidence, CoordinatorBegan))
    assert handed_over or victim != leader
    assert {seen.steps_lost for seen in events(evidence, IncidentClosed)} == {0}
    assert "preempted" in {seen.fault for seen in events(evidence, Diagnosed)}
    assert finals(evidence) == undisturbed
    require_each_update_once(evidence)


def test_without_an_authority_the_loss_of_the_coordinator_is_a_reasoned_stop_everywhere(begin):
    run = begin("none", "--node-patience", "5s")
    wait_until_held(run)
    (candidate,) = coordinator_on(run.stand, "n0")
    os.kill(candidate, signal.SIGKILL)
    wait_for(run, lambda: not run.running())
    evidence = run.finish()
    assert evidence.left == ()
    ends = {one.node: [r.event for r in one.records if isinstance(r.event, RunEnded)] for one in evidence.runs}
    assert {node: len(found) for node, found in ends.items()} == {"n0": 1, "n1": 1, "n2": 1}
    assert all(found[0].outcome == "failed" and "coordinator" in found[0].reason for found in ends.values()), ends
    # The job ends with n0; the others have only been cut off, for all they know.
    assert {one.node: one.exit_code for one in evidence.runs} == {"n0": 1, "n1": NODE_ALONE, "n2": NODE_ALONE}


# --- looking --------------------------------------------------------------------------------------------------------


def wait_for(run: NodesRun, condition) -> None:
    assert run.wait_for(condition, WITHIN_S), outputs(run.finish())


def wait_until_held(run: NodesRun) -> None:
    """Both seats have closed the step before HOLD, and a spare process waits."""
    wait_for(run, lambda: closed_step(run.all_records()) >= HOLD - 1 and len(ready(run)) >= 3)


def ready(run: NodesRun) -> set[int]:
    return {seen.proc for seen in events_so_far(run, ProcessReady)}


def events_so_far(run: NodesRun, kind: type[Event]) -> list:
    return [record.event for record in run.all_records() if isinstance(record.event, kind)]


def events_at(run: NodesRun, node: str, kind: type[Event]) -> list:
    return [record.event for record in run.records(node) if isinstance(record.event, kind)]


def events(evidence: NodesEvidence, kind: type[Event]) -> list:
    return [
        r.event for one in evidence.runs if not one.ended_by_drill for r in one.records if isinstance(r.event, kind)
    ]


def newest_epoch(run: NodesRun, node: str) -> int:
    return max((seen.epoch for seen in events_at(run, node, CoordinatorFollowed)), default=0)


def seated(run: NodesRun) -> tuple[str, ...]:
    """The nodes that have seats, as the newest term has them."""
    members = max((seen.term, seen.members) for seen in events_so_far(run, TermBegan))[1]
    homes = {seen.proc: node for node in run.spec.nodes for seen in events_at(run, node, ProcessStarted)}
    return tuple(homes[proc] for proc in members)


def finish(run: NodesRun) -> NodesEvidence:
    """Let the toy go on to its end; every node ends well and leaves nothing behind."""
    (run.folder.parent / "go").touch()
    wait_for(run, lambda: not run.running())
    evidence = run.finish()
    assert [one.exit_code for one in evidence.runs if not one.ended_by_drill] == [0] * (
        3 - sum(one.ended_by_drill for one in evidence.runs)
    ), outputs(evidence)
    assert evidence.left == ()
    return evidence


def finals(evidence: NodesEvidence) -> dict:
    return {seat: final for one in evidence.runs for seat, final in one.finals.items()}


def require_each_update_once(evidence: NodesEvidence) -> None:
    applied = [one for run in evidence.runs for one in run.applied]
    assert applied_twice(applied) == []
    assert two_coordinators(r for run in evidence.runs for r in run.records) == []
    assert {one.step for one in applied} == set(range(STEPS))


def outputs(evidence: NodesEvidence) -> str:
    return "\n".join(f"{one.node}:\n{one.output}" for one in evidence.runs)


# --- strangers ------------------------------------------------------------------------------------------------------


def with_strangers(ports: frozenset[int]) -> None:
    """Garbage, a huge length, and a caller who says nothing: none of them learns anything but 32 random bytes."""
    assert ports
    for port in ports:
        for words in (b"GET / HTTP/1.0\r\n\r\n" * 4, b"\xff" * 64, b"crlink01" + b"\0" * 64):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
                stranger.sendall(words)
                assert len(answer_to(stranger)) in {0, 32}


def answer_to(stranger: socket.socket) -> bytes:
    """Everything until the other end has had enough."""
    heard = b""
    try:
        while received := stranger.recv(4096):
            heard += received
    except ConnectionResetError:
        return heard
    return heard
