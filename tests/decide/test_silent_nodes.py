"""A node that is out of reach for a while, seen from the coordinator."""

from test_node_loss import rungs, world_of

from closeranks.decide.protocol import BeginTerm, NodeLost, StartProc
from closeranks.decide.room import room
from closeranks.events import IncidentOpened, Rung


def test_a_short_silence_is_not_noticed_by_the_group():
    world = world_of(["n0", "n1"], 4, 2, at_step={10: lambda world: world.silence("n1", for_s=2.0)}).run()
    assert world.events(IncidentOpened) == []
    assert world.steps_done == list(range(30))


def test_a_node_that_was_interrupted_comes_back_and_the_group_meets_in_place_with_its_memory():
    silence = lambda world: world.silence("n1", for_s=60.0, lost_after_s=900.0)  # noqa: E731
    world = world_of(["n0", "n1"], 4, 2, at_step={5: silence}, patience_s=900.0)
    world.until = 100
    world.run()
    assert rungs(world) == [Rung.REGROUP]
    assert world.of(BeginTerm)[-1].procs == (1, 2, 3, 4)
    assert world.steps_done == list(range(100))


def test_nothing_is_started_on_a_silent_node():
    def strike(world):
        world.silence("n1", for_s=100.0, lost_after_s=900.0)
        world.after(2.0, lambda: world.kill(1))

    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={5: strike})
    world.until = 100
    world.run()
    assert world.ended.outcome == "completed"
    assert "n1" not in [d.node for d in world.of(StartProc)]


def test_a_silent_node_that_is_lost_is_replaced():
    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={5: lambda world: world.silence("n1", for_s=900.0)})
    world.until = 100
    world.run()
    assert rungs(world)[-1] is Rung.REPLACE_NODE
    assert world.state.places == ("n0", "n0", "n2", "n2")
    assert world.steps_done == list(range(100))


def test_a_node_without_which_nothing_goes_on_ends_the_run():
    lost = NodeLost(node="n1", detail="silent for 600 s", hopeless="no other node has room for its seats")
    world = world_of(["n0", "n1"], 4, 2, at_step={5: lambda world: world.feed(lost)}).run()
    assert (world.ended.outcome, rungs(world)) == ("failed", [Rung.STOP])
    assert "no other node has room for its seats" in world.ended.reason


def test_a_node_is_replaceable_where_others_that_can_be_reached_have_room_for_its_seats():
    world = world_of(["n0", "n1", "n2"], 4, 2)
    told = {}

    def look():
        told["all are there"] = room(world.state).replaces("n1")
        world.silence("n2", for_s=100.0)
        world.after(2.0, lambda: told.setdefault("the spare is silent", room(world.state).replaces("n1")))

    world.at(101.0, look)
    world.run()
    assert told == {"all are there": True, "the spare is silent": False}
