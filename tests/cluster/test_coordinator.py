"""What a coordinator makes of nodes that come, go and speak against themselves, without processes or sockets."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from closeranks.authority.record import Record
from closeranks.cluster import coordinator as cluster_coordinator
from closeranks.cluster import second_paths
from closeranks.cluster.coordinator import Coordinator
from closeranks.decide.leases import Clockwork
from closeranks.decide.memo import encode, memo_of
from closeranks.decide.protocol import EndAfterStep, KnownProc
from closeranks.decide.state import Stage
from closeranks.events import PreflightDone
from closeranks.nodes import words
from closeranks.nodes.link import End, Ended
from cluster.scene import Line, introduced, scene, settle

TERM = Record(
    procs_reserved=2_000_000,
    term=3,
    members=(1, 2),
    nodes=("n0", "n1"),
    boots={"n0": "b", "n1": "b"},
    incarnations=(1, 1),
)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Nobody is looked for, nothing is stored, and reports are waited for only a moment."""

    async def never(*_):
        await asyncio.get_running_loop().create_future()

    async def nothing(*_):
        return None

    monkeypatch.setattr(second_paths, "probe", never)
    monkeypatch.setattr(second_paths, "keep_vigil", never)
    monkeypatch.setattr(cluster_coordinator, "newest_in_store", nothing)
    monkeypatch.setattr(cluster_coordinator, "_GATHERING_S", 0.2)


def trains(seat: int, stage: Stage = Stage.LOOPING, *, looped: bool = True, **changes) -> words.Report:
    """A report of a node with one member of the term."""
    member = KnownProc(
        proc=seat + 1,
        seat=seat,
        incarnation=1,
        stage=stage.value,
        term=3,
        newcomer=False,
        replicated=True,
        settled=True,
        looped=looped,
    )
    return words.Report(procs=(member,), ended=(), closed_step=7 if looped else -1, **changes)


IDLE = words.Report(procs=(), ended=(), closed_step=-1)


def calls(coordinator: Coordinator, introduction: words.Introduction, report: words.Report | None = None) -> Line:
    """A node calls, and reports."""
    line = Line()
    line.ears = coordinator.hear(line)
    line.ears.on_word(introduction)
    if report is not None:
        line.ears.on_word(report)
    return line


def of_other_process(node: str) -> words.Introduction:
    introduction = introduced(node)
    return words.Introduction(
        **{name: getattr(introduction, name) for name in introduction.__struct_fields__} | {"boot": "other"}
    )


@asynccontextmanager
async def leading(tmp_path, record: Record = TERM):
    """A successor, that has just been elected."""
    tenure, identity, options = scene(tmp_path)
    tenure.record = record
    tenure.grantable_s = lambda _heard_s: 3.0
    coordinator = Coordinator(tenure, identity, options, "the second")
    leads = asyncio.create_task(coordinator.run())
    await settle()
    try:
        yield coordinator
    finally:
        leads.cancel()
        await asyncio.gather(leads, return_exceptions=True)
        coordinator.let_go()


async def until(holds) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - callbacks bring it about
            await asyncio.sleep(0.005)


def told(line: Line, kind: type) -> list:
    return [word for word in line.told if isinstance(word, kind)]


# --- nodes that speak against themselves ----------------------------------------------------------------------------


def test_a_node_that_is_unwell_and_holds_seats_is_there_again_after_its_link_broke(tmp_path):
    # Its report was taken for the wish to be left out, and dropped: to the controller the node was out of reach until
    # its sign ended, and a recovery that began meanwhile waited for it without any deadline.
    async def blink() -> None:
        async with leading(tmp_path) as coordinator:
            calls(coordinator, introduced("n0"), trains(0))
            line = calls(coordinator, introduced("n1"), trains(1))
            await until(lambda: coordinator._mind.whole)
            line.ears.on_closed(End(Ended.LOST, ""))
            await settle()
            assert coordinator._mind.state.nodes["n1"].silent
            calls(coordinator, introduced("n1"), trains(1, failed="a rising temperature"))
            node = coordinator._mind.state.nodes["n1"]
            assert not node.silent
            assert node.unfit

    asyncio.run(blink())


def test_a_successor_counts_with_a_member_whose_node_is_unwell(tmp_path):
    # What such a node reported was left out: its paused members were taken for training ones, and asked in vain.
    async def take_over() -> None:
        async with leading(tmp_path) as coordinator:
            calls(coordinator, introduced("n0"), trains(0))
            calls(coordinator, introduced("n1"), trains(1, Stage.INTERRUPTED, failed="hot"))
            await until(lambda: coordinator._mind.whole)
            state = coordinator._mind.state
            assert not state.nodes["n1"].silent
            assert state.nodes["n1"].unfit
            assert state.procs[2].stage is Stage.INTERRUPTED

    asyncio.run(take_over())


def test_a_spare_node_that_is_unwell_at_a_takeover_is_left_out_until_it_is_well(tmp_path):
    async def get_well() -> None:
        async with leading(tmp_path) as coordinator:
            calls(coordinator, introduced("n0"), trains(0))
            calls(coordinator, introduced("n1"), trains(1))
            spare = calls(coordinator, introduced("n2"), words.Report(procs=(), ended=(), closed_step=-1, failed="hot"))
            await until(lambda: coordinator._mind.whole)
            await settle()
            assert "n2" not in coordinator._mind.state.nodes
            spare.ears.on_word(IDLE)
            assert not coordinator._mind.state.nodes["n2"].unfit

    asyncio.run(get_well())


# --- nodes that are silent ---------------------------------------------------------------------------------------

THREE = replace(TERM, members=(1, 2, 3), nodes=("n0", "n1", "n2"), boots={}, incarnations=(1, 1, 1))


def test_of_two_silent_nodes_none_is_given_up_where_there_is_room_for_one(tmp_path):
    # Each alone could have been replaced, so both were given up at once: the group was short all the same, and what
    # their ranks held in memory was ended though the link came back.
    async def fall_silent() -> None:
        async with leading(tmp_path, THREE) as coordinator:
            calls(coordinator, introduced("n0"), trains(0))  # two slots, of which one is free
            lines = [calls(coordinator, introduced(f"n{seat}"), trains(seat)) for seat in (1, 2)]
            await until(lambda: coordinator._mind.whole)
            coordinator.absences._clockwork = Clockwork(lease_s=0.02, renew_s=0.01, fence_s=0.01)
            for line in lines:
                line.ears.on_closed(End(Ended.LOST, ""))
            coordinator.absences.look(time.monotonic() + 0.5, 0.0)
            assert {"n1", "n2"} <= coordinator._attendees.keys()
            calls(coordinator, introduced("n2"), trains(2))
            coordinator.absences.look(time.monotonic() + 0.5, 0.0)
            assert "n1" not in coordinator._attendees
            assert "n2" in coordinator._attendees

    asyncio.run(fall_silent())


# --- nodes that are lost while reports are gathered -----------------------------------------------------------------


def test_a_node_that_leaves_while_its_report_waits_to_be_adopted_is_lost(tmp_path):
    # The loss came before there was a controller to be told of it, and then the node was taken for one that is out of
    # reach: its seats were waited for without end.
    async def leave() -> None:
        async with leading(tmp_path) as coordinator:
            calls(coordinator, introduced("n0"), trains(0))
            line = calls(coordinator, introduced("n1"), trains(1))
            calls(coordinator, introduced("n2"))  # which others know, and whose report is waited for
            line.ears.on_word(words.Farewell(reason="it was killed"))
            await settle()
            assert not coordinator._mind.whole
            await until(lambda: coordinator._mind.whole)
            await settle()
            assert "n1" not in coordinator._mind.state.nodes

    asyncio.run(leave())


def test_a_node_that_an_earlier_leader_gave_up_and_that_comes_late_is_taken_as_a_new_one(tmp_path):
    # It stood in the record of the term, so it passed for one that the controller knows and that was back: the
    # controller had lost it, no word of its return reached it, and the run waited for a node with room beside one.
    async def give_up_and_meet_again() -> None:
        memo = await memo_of_a_leader_that_gave_up("n1", tmp_path)
        async with leading(tmp_path) as coordinator:
            calls(coordinator, introduced("n0"), trains(0, memo=memo, memo_epoch=1, memo_seq=1))
            await until(lambda: coordinator._mind.whole)
            assert "n1" not in coordinator._mind.state.nodes
            line = calls(coordinator, introduced("n1"), trains(1, Stage.INTERRUPTED))
            assert coordinator._mind.state.nodes["n1"].slots == 2
            assert [word.procs for word in told(line, words.Dismissed)] == [(2,)], "its seat was given away"

    asyncio.run(give_up_and_meet_again())


async def memo_of_a_leader_that_gave_up(node: str, tmp_path) -> bytes:
    async with leading(tmp_path) as coordinator:
        calls(coordinator, introduced("n0"), trains(0))
        calls(coordinator, introduced(node), trains(1)).ears.on_word(words.Farewell(reason="it was killed"))
        await until(lambda: coordinator._mind.whole and node not in coordinator._mind.state.nodes)
        return encode(memo_of(coordinator._mind.state, time.monotonic()))


# --- processes of the same name -------------------------------------------------------------------------------------


def test_another_process_under_the_name_of_a_seated_node_does_not_speak_for_it(tmp_path):
    # It was taken for the node of the record, which had let go of its old leader: that one's members may still train
    # on the other side of a partition, and their seats were given away beside them.
    async def appear() -> None:
        async with leading(tmp_path) as coordinator:
            coordinator._tenure.predecessor_s = time.monotonic()  # it has just led: its grants may last
            line = calls(coordinator, of_other_process("n1"), IDLE)
            (away,) = told(line, words.TurnedAway)
            assert not away.final
            assert "n1 is there already, as process b" in away.reason
            await until(lambda: coordinator._mind.whole)
            assert coordinator._attendees["n1"].follows_s is None
            assert coordinator.absences.outnumbered()

    asyncio.run(appear())


def test_a_node_that_was_started_anew_is_let_in_once_its_first_process_cannot_act(tmp_path):
    # It was asked to wait until the patience with the old one was at its end, and then the run failed for want of it.
    async def come_back() -> None:
        async with leading(tmp_path) as coordinator:
            calls(coordinator, introduced("n0"), trains(0))
            calls(coordinator, of_other_process("n1"), IDLE)
            await until(lambda: coordinator._mind.whole)
            coordinator.absences._clockwork = Clockwork(lease_s=0.02, renew_s=0.01, fence_s=0.01)
            await until(lambda: "n1" not in coordinator._attendees)
            await until(lambda: "n1" not in coordinator._mind.state.nodes)
            line = calls(coordinator, of_other_process("n1"), IDLE)
            assert told(line, words.Welcome)

    asyncio.run(come_back())


def test_the_record_of_a_term_names_the_processes_that_its_members_are_on(tmp_path):
    async def name() -> None:
        async with leading(tmp_path) as coordinator:
            calls(coordinator, of_other_process("n2"), IDLE)
            boots = coordinator._boots_of(("n0", "n2", "n2", "n7"))
            assert boots == {"n0": "b", "n2": "other", "n7": ""}

    asyncio.run(name())


# --- what has to be the same ----------------------------------------------------------------------------------------


def test_a_node_that_was_started_with_another_option_is_refused_by_name(tmp_path):
    async def come() -> None:
        async with leading(tmp_path, Record(procs_reserved=1_000_000)) as coordinator:
            introduction = introduced("n1")
            introduction.common.update(coordinator._house.leader.common, store="/elsewhere")
            (away,) = told(calls(coordinator, introduction), words.TurnedAway)
            assert away.final
            assert away.reason.startswith("--store is /elsewhere on n1 and None on n0; start all nodes")

    asyncio.run(come())


FACTS = {"python": "3.11.2", "script": "aa", "torch": "2.13.0"}


@pytest.mark.parametrize("earlier", [False, True], ids=["its first process", "a later one"])
def test_a_process_that_differs_ends_its_node_only_where_it_is_the_first(tmp_path, earlier):
    # A spare node with another torch was seated in the midst of a run. Who edits the script of a run that goes on
    # finds new processes different on every node: these are told of, and the nodes stay.
    async def join() -> None:
        async with leading(tmp_path) as coordinator:
            calls(coordinator, introduced("n0"), trains(0)).ears.on_word(words.SeatFacts(proc=1, seat=0, facts=FACTS))
            spare = calls(coordinator, introduced("n2"), IDLE)
            if earlier:
                spare.ears.on_word(words.SeatFacts(proc=8, seat=None, facts=FACTS))
            spare.ears.on_word(words.SeatFacts(proc=9, seat=None, facts=FACTS | {"torch": "2.12.0"}))
            away = told(spare, words.TurnedAway)
            assert [word.reason.partition(";")[0] for word in away] == (
                [] if earlier else ["torch is 2.12.0 there and 2.13.0 in the job"]
            )

    asyncio.run(join())


@pytest.mark.parametrize("looped", [False, True], ids=["while they joined", "after a script was edited"])
def test_processes_are_compared_by_a_successor_too_but_what_trains_is_not_ended(tmp_path, looped):
    # What they had said was known to the dead coordinator alone. And where a script had been edited while the job
    # trained, its successor ended the job.
    async def join() -> tuple[list, list]:
        async with leading(tmp_path) as coordinator:
            lines = []
            for seat, script in enumerate(("aa", "bb")):
                stage = Stage.LOOPING if looped else Stage.JOINED
                lines.append(line := calls(coordinator, introduced(f"n{seat}"), trains(seat, stage, looped=looped)))
                line.ears.on_word(words.SeatFacts(proc=seat + 1, seat=seat, facts=FACTS | {"script": script}))
            ends = [] if coordinator._decisions.empty() else [coordinator._decisions.get_nowait().reason]
            await settle()
            notes = [event for word in told(lines[0], words.Notes) for event in word.events]
            return ends, [event.findings for event in notes if isinstance(event, PreflightDone)]

    ends, findings = asyncio.run(join())
    difference = "script differs: aa on seat 0, bb on seat 1"
    assert [reason.partition(";")[0] for reason in ends] == ([] if looped else [f"preflight: {difference}"])
    assert findings == [(difference,)]


def test_a_successor_takes_a_node_with_living_processes_for_compared(tmp_path):
    async def join() -> list:
        async with leading(tmp_path) as coordinator:
            calls(coordinator, introduced("n0"), trains(0)).ears.on_word(words.SeatFacts(proc=1, seat=0, facts=FACTS))
            spare = replace(trains(0).procs[0], proc=9, seat=None)
            line = calls(coordinator, introduced("n2"), words.Report(procs=(spare,), ended=(), closed_step=-1))
            line.ears.on_word(words.SeatFacts(proc=9, seat=None, facts=FACTS | {"script": "edited"}))
            return told(line, words.TurnedAway)

    assert asyncio.run(join()) == []


# --- an orderly stop ------------------------------------------------------------------------------------------------


def test_a_successor_hears_which_steps_are_open_before_it_says_where_to_stop(tmp_path):
    # It said step 4 to a job that was at its step 500: each seat left after whatever it had open.
    async def stop() -> int:
        async with leading(tmp_path) as coordinator:
            lines = [calls(coordinator, introduced(f"n{k}"), trains(k)) for k in (0, 1)]
            await until(lambda: coordinator._mind.whole)
            coordinator._decisions.put_nowait(EndAfterStep())
            for line, step in zip(lines, (500, 501), strict=True):
                await settle()
                assert told(lines[0], words.StopAt) == []
                beat = words.Beat(number=1, sent_ns=1, granted=0, signs=(), closed=(), open_step=step, quiet_s=0.0)
                line.ears.on_word(beat)
            await until(lambda: told(lines[0], words.StopAt))
            return told(lines[0], words.StopAt)[0].step

    assert asyncio.run(stop()) > 501


def test_a_node_whose_link_broke_hears_again_where_to_stop(tmp_path):
    # It was told once: a node that missed it trained on, and the others left without it.
    async def stop() -> tuple[list, list]:
        async with leading(tmp_path) as coordinator:
            line = calls(coordinator, introduced("n0"), trains(0))
            await until(lambda: coordinator._mind.whole)
            coordinator._decisions.put_nowait(EndAfterStep())
            line.ears.on_word(words.Beat(number=1, sent_ns=1, granted=0, signs=(), closed=(), open_step=5, quiet_s=0.0))
            await until(lambda: told(line, words.StopAt))
            line.ears.on_closed(End(Ended.LOST, ""))
            return told(line, words.StopAt), told(calls(coordinator, introduced("n0"), trains(0)), words.StopAt)

    first, again = asyncio.run(stop())
    assert again == first
