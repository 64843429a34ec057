"""Many nodes: what they cost their coordinator when they come, fall silent at once, and are given up."""

from __future__ import annotations

import asyncio

import pytest

from closeranks.cluster import mind as cluster_mind
from closeranks.cluster import second_paths
from closeranks.cluster.absence import Absences
from closeranks.cluster.attendance import Attendee
from closeranks.cluster.coordinator import Coordinator
from closeranks.cluster.mind import Mind
from closeranks.decide.protocol import NodeJoined
from closeranks.events import NodeGone
from closeranks.nodes import words
from closeranks.nodes.link import End, Ended
from closeranks.nodes.probes import Finding, Probed
from cluster.scene import NODES, Line, introduced, scene, settle


@pytest.fixture
def probes(monkeypatch):
    """Whom the leader looked for; nobody is ever found."""
    asked = []

    async def never(*_):
        await asyncio.get_running_loop().create_future()

    async def probe(_address, _keys, wanted, _within_s):
        asked.append(wanted.node)
        await never()
        return Probed(Finding.UNREACHABLE, "")

    monkeypatch.setattr(second_paths, "probe", probe)
    monkeypatch.setattr(second_paths, "keep_vigil", never)
    return asked


def test_what_is_noted_in_one_moment_travels_in_one_word_and_is_numbered_on(tmp_path):
    # A job of 250 nodes that started sent each of them a word for every node and every seat.
    async def start() -> list[words.Notes]:
        coordinator, line = Coordinator(*scene(tmp_path), "the first"), Line()
        line.ears = coordinator.hear(line)
        line.ears.on_word(introduced("n1"))
        for nodes in (NODES, 1):
            for k in range(nodes):
                coordinator._telling.note(NodeGone(node=f"n{k}", boot="b", detail=""))
            await settle()
        return [word for word in line.told if isinstance(word, words.Notes)]

    many, one = asyncio.run(start())
    assert [event.node for event in many.events] == [f"n{k}" for k in range(NODES)]
    assert (many.stamp.seq, one.stamp.seq, len(one.events)) == (0, NODES, 1)


def test_a_node_that_was_given_up_is_looked_for_no_more(tmp_path, probes):
    # Cutting its connection looked like one more silence: it was probed five times a second until the run ended,
    # and a leader that had given up hundreds did nothing else.
    async def part() -> None:
        coordinator, line = Coordinator(*scene(tmp_path), "the first"), Line()
        line.ears = coordinator.hear(line)
        line.ears.on_word(introduced("n1"))
        line.ears.on_word(words.Report(procs=(), ended=(), closed_step=-1))
        line.ears.on_word(words.Farewell(reason=""))
        await settle()
        assert line.end is not None
        assert len(asyncio.all_tasks()) == 2  # this one, and the vigil that is being begun

    asyncio.run(part())
    assert probes == []


def test_a_leader_that_was_deposed_looks_for_nobody(tmp_path, probes):
    async def step_down() -> None:
        coordinator = Coordinator(*scene(tmp_path), "the first")
        for node in ("n1", "n2"):
            line = Line()
            line.ears = coordinator.hear(line)
            line.ears.on_word(introduced(node))
        line.ears.on_closed(End(Ended.LOST, ""))
        await settle()
        coordinator.let_go()
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(step_down())
    assert probes == ["n2"]


def test_however_many_nodes_are_silent_few_are_probed_at_a_time(tmp_path, probes):
    async def lose_a_switch() -> None:
        tenure, *others = scene(tmp_path)
        attendees: dict[str, Attendee] = {}
        absences = Absences(attendees, tenure, tuple(others), lambda *_: None)
        for k in range(1, NODES):
            one = attendees[f"n{k}"] = Attendee(node=f"n{k}", boot="b", introduction=introduced(f"n{k}"))
            absences.hung_up(one, End(Ended.LOST, ""))
        await settle()
        assert len(probes) == second_paths._AT_ONCE
        absences.let_go()

    asyncio.run(lose_a_switch())


def test_room_is_counted_once_for_all_silent_nodes_until_something_changes(tmp_path, monkeypatch):
    # Counted anew for each of 250 nodes ten times a second it took a whole core, and while it did more fell silent.
    counted = []
    monkeypatch.setattr(cluster_mind, "room", lambda state: counted.append(state) or ROOM(state))
    tenure, _, options = scene(tmp_path)
    mind = Mind(options, tenure)
    monkeypatch.setattr(mind, "_register", cluster_mind.Register)
    mind.begin()
    for _ in range(3):
        assert all(mind.has_room(f"n{k}") for k in range(NODES)) is False  # no node has come yet
    mind.step(NodeJoined(node="n1", slots=2 * NODES + 2, domains={}, host="h"))
    assert mind.has_room("n2") and not mind.has_room("n1")
    assert len(counted) == 2


ROOM = cluster_mind.room


def test_a_switch_that_fails_costs_one_memo_and_no_decision_overtakes_it(tmp_path, probes):
    # Each of a thousand nodes that fell silent had a memo of half a megabyte told to all the others.
    async def lose() -> list[words.FromCoordinator]:
        tenure, identity, options = scene(tmp_path)
        tenure.grantable_s = lambda _heard_s: 3.0
        coordinator = Coordinator(tenure, identity, options, "the first")
        leads = asyncio.create_task(coordinator.run())
        lines = []
        for k in range(NODES // 2):
            lines.append(line := Line())
            line.ears = coordinator.hear(line)
            line.ears.on_word(introduced(f"n{k}"))
            line.ears.on_word(words.Report(procs=(), ended=(), closed_step=-1))
            await asyncio.sleep(0)
        await settle()
        lines[0].told.clear()
        for line in lines[1:]:
            line.ears.on_closed(End(Ended.LOST, ""))
        async with asyncio.timeout(30):
            while not any(isinstance(word, words.Notes) for word in lines[0].told):  # noqa: ASYNC110 - callbacks tell it
                await asyncio.sleep(0)
        leads.cancel()
        coordinator.let_go()
        return lines[0].told

    told = [word for word in asyncio.run(lose()) if not isinstance(word, words.Probe)]
    assert [type(word) for word in told[:2]] == [words.Memo, words.Notes]
    assert len(told[1].events) == NODES // 2 - 1
    assert sum(isinstance(word, words.Memo) for word in told) == 1
