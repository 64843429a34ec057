"""Scenarios of runs on several nodes, as transcripts.

Two seats a node: p1 and p2 sit on n0, p3 and p4 on n1, and so on; the spares of a spare node follow.
"""

from node_world import NodeWorld

from closeranks.decide.protocol import BeginTerm, StartGroup, StartProc
from closeranks.decide.state import Settings
from closeranks.events import Decided, Diagnosed, IncidentClosed, IncidentOpened, IncidentWidened, Rung


def world_of(nodes, seats, needed, *, at_step=None, slots=2, spares=0, domains=None, patience_s=600.0):
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
