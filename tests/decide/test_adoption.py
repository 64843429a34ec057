"""A new coordinator takes over: at any moment, without a lost step."""

from itertools import pairwise

import pytest
from node_world import NodeWorld
from test_node_loss import die, rungs, world_of

from closeranks.decide import memo as memos
from closeranks.decide.adoption import Known, KnownNode, adopt
from closeranks.decide.protocol import (
    BeginTerm,
    EndAfterStep,
    GoOn,
    InterruptTerm,
    LetLeave,
    PlanRestore,
    StartGroup,
    StartProc,
    StopAsked,
)
from closeranks.decide.state import Settings
from closeranks.events import CoordinatorBegan, IncidentClosed, IncidentOpened, Rung


def crash(world: NodeWorld) -> None:
    world.crash(for_s=0.3)


def test_while_all_train_nothing_is_decided_and_nobody_notices():
    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={10: crash}).run()
    assert len(world.events(CoordinatorBegan)) == 1
    assert world.events(IncidentOpened) == []
    assert len(world.of(BeginTerm)) == 1
    assert world.steps_done == list(range(30))


@pytest.mark.parametrize("kind", [StartProc, InterruptTerm, BeginTerm, PlanRestore, GoOn])
@pytest.mark.parametrize("after", [False, True], ids=["before it is told", "after"])
def test_a_recovery_is_finished_by_the_next_coordinator_without_a_lost_step(kind, after):
    world = world_of(["n0", "n1"], 4, 2, at_step={10: lambda world: world.kill(3)})
    struck = []

    def hook(decision):
        if isinstance(decision, kind) and len(world.steps_done) == 10 and not struck:
            struck.append(decision)
            if after:
                world.crash_after = 1
            else:
                world.crash(for_s=0.5)

    world.decision_hook = hook
    world.run()
    assert struck
    assert world.ended.outcome == "completed"
    assert world.steps_done == list(range(30))
    assert Rung.COLD_RESTART not in rungs(world)
    assert sum(e.steps_lost for e in world.events(IncidentClosed)) == 0


@pytest.mark.parametrize("kind", [StartGroup, BeginTerm, PlanRestore, GoOn])
def test_a_coordinator_lost_at_the_start_starts_the_group_again_at_no_one_s_cost(kind):
    world = world_of(["n0", "n1"], 4, 2)
    struck = []

    def hook(decision):
        if isinstance(decision, kind) and not struck:
            struck.append(decision)
            world.crash_after = 1

    world.decision_hook = hook
    world.run()
    assert world.ended.outcome == "completed"
    assert world.state.ledger.colds == 0


def test_the_node_of_the_coordinator_dies_with_it():
    def strike(world):
        world.die("n0")
        world.crash(for_s=2.0)

    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={10: strike}).run()
    assert world.ended.outcome == "completed"
    assert world.state.places == ("n2", "n2", "n1", "n1")
    assert world.steps_done == list(range(30))


def test_a_loss_during_the_time_without_a_coordinator_is_found_with_its_cause():
    def strike(world):
        world.crash(for_s=1.0)
        world.after(0.2, lambda: world.kill(3))

    world = world_of(["n0", "n1"], 4, 2, at_step={10: strike}).run()
    assert [e.summary for e in world.events(IncidentOpened)] == ["s2.1 was ended by SIGKILL"]
    assert world.steps_done == list(range(30))


def test_a_run_that_waits_for_a_node_goes_on_waiting_for_it():
    world = world_of(["n0", "n1"], 4, 2, at_step={10: die("n1")})
    world.at(110.0, lambda: world.crash(for_s=3.0))
    world.at(150.0, lambda: world.join("n2"))
    world.run()
    assert world.ended.outcome == "completed"
    assert world.steps_done == list(range(30))
    assert len(world.events(IncidentOpened)) == 1


def test_who_was_asked_to_stop_stays_asked():
    def strike(world):
        world.feed(StopAsked(now=False))
        world.crash(for_s=0.05)

    world = world_of(["n0", "n1"], 4, 2, at_step={10: strike})
    world.run()
    assert (world.ended.outcome, world.ended.exit_code) == ("stopped", 143)
    assert len(world.of(EndAfterStep)) == 2


@pytest.mark.parametrize("carried_out", [0, 1])
def test_the_end_of_the_loop_is_finished_by_the_next_coordinator(carried_out):
    world = world_of(["n0", "n1"], 4, 2)

    def hook(decision):
        if isinstance(decision, LetLeave) and world.epoch == 1:
            world.crash_after = carried_out
            world.after(0.12, world.crash)

    world.decision_hook = hook
    world.run()
    assert (world.ended.outcome, world.ended.reason) == ("completed", "every seat finished and left")


def test_a_memo_survives_its_bytes_and_another_clock():
    world = world_of(["n0", "n1"], 4, 2, at_step={10: die("n1")}, patience_s=30.0).run()
    memo = memos.memo_of(world.state, world.now_s)
    assert memos.decode(memos.encode(memo)) == memo
    moved = memos.on_clock(memo, 5.0)
    assert [t - 5.0 for t in moved.ledger.incidents] == pytest.approx(
        [t - world.now_s for t in world.state.ledger.incidents]
    )


def test_a_memo_is_sent_for_what_changed_and_not_for_every_step():
    world = world_of(["n0", "n1"], 4, 2)
    told = []
    world.step_hook = lambda _: told.append(memos.memo_of(world.state, world.now_s))
    world.at(102.0, lambda: world.kill(3))
    world.run()
    sent = [one for one, other in pairwise(told) if memos.worth_sending(one, other)]
    assert 1 <= len(sent) <= 3


def strike_the_only_node_with_seats(world):
    world.die("n0")
    world.crash(for_s=2.0)


def test_a_node_without_seats_takes_over_when_the_only_one_with_seats_dies_with_the_coordinator():
    world = world_of(["n0", "n1"], 2, 1, at_step={10: strike_the_only_node_with_seats})
    world.save_every = 4
    world.run()
    assert world.ended.outcome == "completed"
    assert world.state.places == ("n1", "n1")
    (closed,) = world.events(IncidentClosed)
    assert (closed.steps_lost, world.saves[:2]) == (2, [3, 7]), "step 9 was closed when it was last heard"
    assert closed.at_least, "whoever knew of a later step is gone"


def test_steps_that_a_node_without_seats_has_heard_of_count_where_nobody_else_is_left():
    known = Known(
        leader="n1",
        reason="",
        term=3,
        members=(5,),
        places=("n0",),
        incarnations=(1,),
        next_proc=9,
        incidents=0,
        nodes=(KnownNode(name="n1", slots=1, closed_everywhere=41),),
        saved_step=20,
    )
    state, _ = adopt(Settings(seats=1, nodes_needed=1), known, 0.0)
    assert (state.group.newest_step, state.group.unsure) == (41, True)
