"""Groups that go on with fewer seats than were asked for, and grow again. What must hold of each is in the world."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from node_world import NodeWorld
from test_node_properties import faults, strike_node

from closeranks.decide import memo, sizing
from closeranks.decide.adoption import Known, KnownNode, adopt
from closeranks.decide.budgets import Ledger, Limits
from closeranks.decide.pace import Pace
from closeranks.decide.protocol import BeginTerm, StartGroup
from closeranks.decide.state import Deadlines, Group, Life, Node, Settings, State
from closeranks.events import Decided, ErrorSeen, IncidentClosed, Rung


def world_of(  # noqa: PLR0913 - a world has many dials, and each test turns one
    nodes, needed=3, *, least=1, at_step=None, spares=0, save_every=4, patience_s=30.0
):
    """Two seats a node; ``at_step``: what happens when that step is closed."""
    wanted = Settings(
        seats=2 * needed,
        spares=spares,
        nodes_needed=needed,
        nodes_min=least,
        node_patience_s=patience_s,
        limits=Limits(cold_restarts=5),
        deadlines=Deadlines(nodes_s=90.0),
    )
    world = NodeWorld(settings=wanted, jitter=0.0, save_every=save_every, until=60).with_nodes(*nodes)
    strikes = dict(at_step or {})
    world.step_hook = lambda number: strikes.pop(number, lambda _: None)(world)
    return world


def die(name):
    return lambda world: world.die(name)


def kill_all(world):
    for sim in world.living():
        if sim.seat is not None:
            world.kill(sim.number)


def sizes(world):
    return [len(d.procs) for d in world.of(StartGroup)]


def test_a_smaller_group_waits_for_the_end_of_those_that_it_replaces():
    """They took longer than a tick, and the run stopped: no node had come for seats that it had given up."""
    world = world_of(["n0", "n1", "n2"], at_step={10: die("n1")})
    world.end_s = 2.0
    world.run()
    assert sizes(world) == [6, 4]
    assert world.ended.outcome == "completed"


def test_a_group_grows_again_when_it_starts_anyway_and_the_node_is_back():
    world = world_of(["n0", "n1", "n2"], at_step={10: die("n1"), 20: lambda w: w.join("n1"), 30: kill_all}).run()
    assert sizes(world) == [6, 4, 6]
    assert world.state.shrunk_to == 0
    assert world.state.places == ("n0", "n0", "n1", "n1", "n2", "n2")
    assert "starts again with 6 seats in place of 4" in world.events(Decided)[-1].reason
    assert sorted(set(world.steps_done)) == list(range(60))
    assert world.ended.outcome == "completed"


def test_a_group_does_not_start_again_only_to_grow():
    world = world_of(["n0", "n1", "n2"], at_step={10: die("n1"), 20: lambda w: w.join("n1")}).run()
    assert sizes(world) == [6, 4]
    assert [p.node for p in world.state.procs.values() if p.seat is None] == ["n1", "n1"], "it is a spare node"


def test_a_node_that_came_back_takes_the_seats_of_the_next_one_that_is_lost():
    world = world_of(["n0", "n1", "n2"], at_step={10: die("n1"), 20: lambda w: w.join("n1"), 30: die("n2")}).run()
    assert sizes(world) == [6, 4]
    assert world.state.places == ("n0", "n0", "n1", "n1")
    assert [e.steps_lost for e in world.events(IncidentClosed)] == [2, 0]


def test_a_group_shrinks_as_often_as_it_may():
    world = world_of(["n0", "n1", "n2"], at_step={10: die("n1"), 20: die("n2")}).run()
    assert sizes(world) == [6, 4, 2]
    assert world.state.places == ("n0", "n0")
    least = world_of(["n0", "n1", "n2"], least=2, at_step={10: die("n1"), 20: die("n2")}).run()
    assert (sizes(least), least.ended.outcome) == ([6, 4], "failed")


def test_state_whose_saver_died_before_it_could_say_so_is_found_in_the_store():
    def strike(world):
        world.die("n0")
        world.crash(for_s=2.0)

    world = world_of(["n0", "n1"], needed=2, at_step={10: strike})
    world.tells_of_saves = False
    world.run()
    assert sizes(world) == [4, 2]
    assert "goes on with 2 of 4 seats from the saved step 7" in world.events(Decided)[-1].reason
    assert sorted(set(world.steps_done)) == list(range(60))


def test_spares_that_were_warmed_for_another_size_end_before_the_group_starts():
    world = world_of(["n0", "n1", "n2"], spares=1, at_step={10: die("n1"), 20: lambda w: w.kill(w.occupant(0).number)})
    world.run()
    assert sizes(world) == [6, 4]
    assert world.events(Decided)[-1].rung is Rung.SPARE, "new ones are warmed, and taken"


def test_a_run_begins_with_fewer_where_nodes_do_not_come():
    world = world_of(["n0", "n2"], least=2).run()
    assert sizes(world) == [4]
    told = [e.detail for e in world.events(ErrorSeen)]
    assert told == ["2 of 3 nodes joined, n1 did not within 90 s: the run begins with 4 of 6 seats"]
    assert world.ended.outcome == "completed"
    assert world_of(["n0"], least=2).run().ended.outcome == "failed"


def test_the_time_that_a_silent_node_was_waited_for_counts():
    world = world_of(["n0", "n1", "n2"], at_step={10: die("n1")})
    world.lost_after_s = 25.0
    shrunk_s = []
    world.decision_hook = lambda d: shrunk_s.append(world.now_s) if isinstance(d, StartGroup) else None
    struck_s = []
    world.step_hook = lambda number: (struck_s.append(world.now_s), world.die("n1")) if number == 10 else None
    world.run()
    assert 30.0 <= shrunk_s[1] - struck_s[0] < 32.0


def test_nothing_that_was_trained_is_thrown_away_to_go_on_with_fewer():
    world = world_of(["n0", "n1", "n2"], save_every=0, at_step={10: die("n1")}).run()
    assert sizes(world) == [6]
    assert "nothing was saved that they could begin with (--store); start another node" in world.ended.reason


@pytest.mark.parametrize(
    ("changes", "lose"),
    [
        ({}, False),
        ({"library": True}, False),
        ({"library": True, "group": Group(newest_step=3)}, True),
        ({"library": True, "group": Group(newest_step=3), "saved_step": 2}, False),
        ({"group": Group(newest_step=3)}, False),
    ],
)
def test_only_a_script_with_the_library_and_without_saved_state_has_something_to_lose(changes, lose):
    state = State(settings=Settings(seats=4), ledger=Ledger(limits=Limits()), pace=Pace(), **changes)
    assert sizing.would_lose(state) is lose


# --- another coordinator --------------------------------------------------------------------------------------------

WANTED = Settings(seats=4, nodes_needed=2, nodes_min=1)


def taken_over(memo_term, memo_size, record_term, record_size):
    """The state of a coordinator that finds this memo and this record; no process is left."""
    old = State(
        settings=WANTED,
        ledger=Ledger(limits=Limits()),
        pace=Pace(),
        life=Life.CLEARING,
        term=memo_term,
        shrunk_to=memo_size % 4,
        nodes={"n0": Node(name="n0", slots=2)},
    )
    known = Known(
        leader="n0",
        reason="test",
        term=record_term,
        members=tuple(range(1, record_size + 1)),
        places=("n0", "n0", "n1", "n1")[:record_size],
        incarnations=(1,) * record_size,
        next_proc=100,
        incidents=0,
        nodes=(KnownNode(name="n0", slots=2),),
        memo=memo.memo_of(old, 0.0) if memo_term else None,
    )
    return adopt(WANTED, known, 0.0)[0]


@pytest.mark.parametrize(
    ("memo_term", "memo_size", "record_term", "record_size", "seats"),
    [
        (0, 0, 3, 2, 2),  # without a memo the record tells
        (0, 0, 3, 4, 4),
        (3, 2, 3, 4, 2),  # it was to shrink
        (4, 2, 3, 4, 2),  # the smaller group had been decided on, and was not recorded
        (3, 2, 4, 4, 4),  # it had grown again since
        (3, 4, 4, 2, 2),  # it had shrunk since
    ],
)
def test_the_size_is_that_of_the_newest_term(memo_term, memo_size, record_term, record_size, seats):
    assert taken_over(memo_term, memo_size, record_term, record_size).seats == seats


# --- random lives ---------------------------------------------------------------------------------------------------


def broken_world(seed: int, planned: list) -> NodeWorld:
    needed = 2 + seed % 2
    least = 1 + seed // 2 % 2
    world = world_of(
        [f"n{k}" for k in range(needed)], needed, least=min(least, needed - 1), spares=seed // 4 % 2, patience_s=4.0
    )
    for after_s, kind, choice in planned:
        world.at(world.now_s + after_s, lambda kind=kind, choice=choice: strike_node(world, kind, choice))
    return world


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), faults)
@example(2, [(2.0, "die", 1), (7.0, "crash in between", 3)])
@example(0, [(2.0, "die", 0), (5.9, "crash", 0), (7.0, "join", 0)])
def test_steps_are_done_in_order_and_never_skipped_whatever_the_size(seed, planned):
    world = broken_world(seed, planned).run(horizon_s=4000.0)
    assert world.ended.reason
    for before, step in zip(world.steps_done, world.steps_done[1:], strict=False):
        assert step <= before + 1, "a step was skipped"
    terms = [d.term for d in world.of(BeginTerm)]
    assert terms == sorted(set(terms))
    if world.ended.outcome == "completed" and not any(kind == "leave" for _, kind, _ in planned):
        assert set(world.steps_done) == set(range(world.until))


def test_these_worlds_do_shrink_grow_and_lose_their_coordinator_meanwhile():
    found = set()
    for seed in range(8):
        for delay_s in range(3, 9):
            planned = [(2.0, "die", 1), (float(delay_s), "crash in between", seed % 3), (9.0, "join", 3)]
            world = broken_world(seed, [*planned, (12.0, "crash", 0)]).run(horizon_s=4000.0)
            found |= {world.ended.outcome, *sizes(world)}
    assert found >= {"completed", 2, 4, 6}
