"""Scenarios of runs on several nodes, as transcripts.

Two seats a node: p1 and p2 sit on n0, p3 and p4 on n1, and so on; the spares of a spare node follow.
"""

import pytest
from msgspec.structs import replace
from node_world import NodeWorld

from closeranks.decide import membership
from closeranks.decide.controller import initial
from closeranks.decide.protocol import BeginTerm, StartGroup, StartProc
from closeranks.decide.state import Settings
from closeranks.decide.turn import Turn
from closeranks.events import Decided, Diagnosed, IncidentClosed, IncidentOpened, IncidentWidened, Rung


def world_of(  # noqa: PLR0913 - a world has many dials, and each test turns one
    nodes, seats, needed, *, at_step=None, slots=2, spares=0, domains=None, patience_s=600.0
):
    settings = Settings(seats=seats, spares=spares, nodes_needed=needed, node_patience_s=patience_s)
    world = NodeWorld(settings=settings, jitter=0.0).with_nodes(*nodes, slots=slots, domains=domains)
    strikes = dict(at_step or {})

    def strike(number):
        if number in strikes:
            strikes.pop(number)(world)

    world.step_hook = strike
    return world


def die(*names):
    return lambda world: [world.die(name) for name in names]


def test_a_node_with_all_its_seats_is_one_loss_and_moves_to_the_spare_node():
    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={10: die("n1")}).run()
    assert [e.seats for e in world.events(IncidentOpened)] == [()], "unexplained at first"
    assert [e.seats for e in world.events(IncidentWidened)] == [(2, 3)]
    assert [e.rung for e in world.events(Decided)] == [Rung.REGROUP, Rung.REPLACE_NODE]
    assert world.events(Diagnosed)[-1].fault == "node lost"
    assert world.of(BeginTerm)[-1].procs == (1, 2, 5, 6)
    assert world.state.places == ("n0", "n0", "n2", "n2")
    assert [(e.outcome, e.steps_lost) for e in world.events(IncidentClosed)] == [("recovered", 0)]
    assert world.steps_done == list(range(30))


def rungs(world):
    return [e.rung for e in world.events(Decided)]


def test_the_node_known_to_be_gone_before_its_peers_notice_is_one_incident():
    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={10: die("n1")})
    world.lost_after_s = 0.1
    world.run()
    assert rungs(world) == [Rung.REPLACE_NODE]
    assert [e.seats for e in world.events(IncidentOpened)] == [(2, 3)]
    assert "where spares wait for 2" in world.events(Decided)[0].reason


def test_seats_spread_over_nodes_with_free_slots():
    world = world_of(["n0", "n1", "n2"], 6, 3, slots=3, at_step={10: die("n1")}).run()
    assert rungs(world)[-1] is Rung.REPLACE_NODE
    assert world.state.places == ("n0", "n0", "n0", "n2", "n2", "n2")
    assert world.steps_done == list(range(30))


def test_survivors_wait_with_their_memory_for_a_node_that_comes():
    world = world_of(["n0", "n1"], 4, 2, at_step={10: die("n1")})
    world.at(200.0, lambda: world.join("n2"))
    world.run()
    assert rungs(world) == [Rung.REGROUP, Rung.REPLACE_NODE, Rung.REPLACE_NODE]
    assert "wait up to 600 s for a node with room for 2 of 2 empty seats" in world.events(Decided)[1].reason
    assert "n2 is there and takes seats [2, 3]" in world.events(Decided)[2].reason
    assert world.steps_done == list(range(30)), "no step is done twice"


def test_the_same_node_that_comes_back_empty_takes_its_seats_again():
    world = world_of(["n0", "n1"], 4, 2, at_step={10: die("n1")})
    world.at(150.0, lambda: world.join("n1"))
    world.run()
    assert rungs(world)[-1] is Rung.FORK
    assert world.ended.outcome == "completed"


def test_when_no_node_comes_the_run_stops_with_what_can_be_done():
    world = world_of(["n0", "n1"], 4, 2, at_step={10: die("n1")}, patience_s=30.0).run()
    assert (world.ended.outcome, world.ended.exit_code) == ("failed", 1)
    assert "no node with room for seats [2, 3] came within 30 s; there are: n0" in world.ended.reason
    assert "start another node" in world.ended.reason


def test_a_group_that_has_to_start_again_waits_for_a_node_too():
    world = world_of(["n0"], 2, 1, at_step={10: die("n0")})
    world.at(130.0, lambda: world.join("n3"))
    world.run()
    assert rungs(world) == [Rung.COLD_RESTART]
    assert [d.nodes for d in world.of(StartGroup)] == [("n0", "n0"), ("n3", "n3")]
    assert world.ended.outcome == "completed"


def test_nodes_of_a_rack_are_one_incident_and_the_rack_is_booked_once():
    racks = {"n0": "a", "n1": "b", "n2": "b", "n3": "a", "n4": "a"}
    domains = {name: {"rack": rack} for name, rack in racks.items()}
    world = world_of(list(racks), 6, 3, domains=domains, at_step={10: die("n1", "n2")}).run()
    assert [e.fault for e in world.events(Diagnosed)] == ["network loss", "node lost", "domain lost"]
    assert "rack b failed as one, n1, n2 were lost in this incident" in world.events(IncidentWidened)[-1].summary
    assert sorted(place for _, place in world.state.ledger.causes if isinstance(place, str)) == ["node n1", "rack b"]
    assert len(world.events(IncidentOpened)) == 1
    assert world.state.places == ("n0", "n0", "n3", "n3", "n4", "n4")


def test_of_two_spare_nodes_the_one_outside_the_failed_domain_is_taken():
    domains = {name: {"power": feed} for name, feed in {"n0": "x", "n1": "y", "n2": "y", "n3": "x"}.items()}
    world = world_of(["n0", "n1", "n2", "n3"], 4, 2, domains=domains, at_step={10: die("n1")}).run()
    assert world.state.places == ("n0", "n0", "n3", "n3")


def test_the_spare_node_that_dies_during_the_move_costs_one_try_not_one_for_each_seat():
    world = world_of(["n0", "n1", "n2", "n3"], 4, 2, at_step={10: die("n1")})
    moved = []

    def hook(decision):
        if isinstance(decision, BeginTerm) and "n2" in world.state.places and not moved:
            moved.append(decision)
            world.after(0.01, lambda: world.die("n2"))

    world.decision_hook = hook
    world.run()
    assert rungs(world)[-1] is Rung.REPLACE_NODE
    assert world.state.places == ("n0", "n0", "n3", "n3")
    assert world.steps_done == list(range(30))


def test_a_single_process_stays_on_its_node():
    world = world_of(["n0", "n1", "n2"], 4, 2, spares=1, at_step={10: lambda world: world.kill(3)}).run()
    assert rungs(world) == [Rung.SPARE]
    assert world.state.places == ("n0", "n0", "n1", "n1")


def test_spare_nodes_keep_a_process_in_each_slot_and_refill_it_there():
    world = world_of(["n0", "n1", "n2"], 4, 2)
    world.at(102.0, lambda: world.kill(next(n for n, where in world.where.items() if where == "n2")))
    world.run()
    assert [d.node for d in world.of(StartProc)] == ["n2"] * 3


def test_a_lost_node_without_seats_is_told_and_disturbs_nobody():
    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={10: die("n2")}).run()
    assert world.events(IncidentOpened) == []
    assert world.steps_done == list(range(30))


def test_a_node_lost_with_the_last_step_closed_ends_the_run_with_that_reason():
    world = world_of(["n0", "n1"], 2, 2, slots=1)
    world.decision_hook = lambda d: world.die("n1") if type(d).__name__ == "LetLeave" else None
    world.lost_after_s = 0.05
    world.run()
    assert "the last step was closed everywhere before" in world.ended.reason


def smaller(world, nodes_min):
    world.wanted = world.settings = replace(world.settings, nodes_min=nodes_min)
    world.state = initial(world.settings)
    world.save_every = 4
    return world


def in_the_middle(slots):
    """The state of a job on two of three nodes."""
    states = []
    strikes = {5: lambda world: states.append(world.state)}
    world_of(["n0", "n1", "n2"], 2 * slots, 2, slots=slots, at_step=strikes).run()
    return states[0]


@pytest.mark.parametrize("use_spares", [True, False])
def test_the_table_of_processes_is_copied_as_often_for_many_empty_seats_as_for_few(monkeypatch, use_spares):
    # It was copied for every seat: thousands of times thousands, when a large group started again.
    puts = []
    put = Turn.put
    monkeypatch.setattr(Turn, "put", lambda turn, *procs: (puts.append(len(procs)), put(turn, *procs)))
    copies = {}
    for slots in (2, 16):
        state = in_the_middle(slots)
        left = {proc: one for proc, one in state.procs.items() if one.node != "n1"}
        nodes = {name: node for name, node in state.nodes.items() if name != "n1"}
        turn = Turn(replace(state, procs=left, nodes=nodes), now_s=0.0)
        puts.clear()
        filled = membership.fill_seats(turn, use_spares=use_spares)
        assert filled == tuple(range(slots, 2 * slots))
        assert {turn.state.procs[proc].node for proc in turn.state.procs.keys() - left.keys()} <= {"n2"}
        assert turn.state.places == ("n0",) * slots + ("n2",) * slots
        assert sum(puts) == slots
        copies[slots] = len(puts)
    assert copies[2] == copies[16]


def test_without_another_node_the_group_goes_on_smaller_where_that_is_allowed():
    world = smaller(world_of(["n0", "n1", "n2"], 6, 3, at_step={10: die("n1")}, patience_s=30.0), 2).run()
    assert rungs(world)[-1] is Rung.SHRINK
    assert "goes on with 4 of 6 seats from the saved step 7" in world.events(Decided)[-1].reason
    start = world.of(StartGroup)[-1]
    assert (len(start.procs), start.nodes) == (4, ("n0", "n0", "n2", "n2"))
    assert world.steps_done == [*range(10), *range(8, 30)]
    assert world.ended.outcome == "completed"


def test_a_group_does_not_become_smaller_than_allowed():
    world = smaller(world_of(["n0", "n1", "n2"], 6, 3, at_step={10: die("n1", "n2")}, patience_s=30.0), 2).run()
    assert rungs(world)[-1] is Rung.STOP


def test_a_smaller_group_survives_its_coordinator():
    world = smaller(world_of(["n0", "n1", "n2"], 6, 3, at_step={10: die("n1")}, patience_s=30.0), 2)
    world.at(133.0, lambda: world.crash(for_s=0.3))
    world.run()
    assert (world.ended.outcome, world.state.seats) == ("completed", 4)
