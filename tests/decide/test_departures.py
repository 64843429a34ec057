"""Nodes that are told to leave while the job goes on."""

from test_node_loss import rungs, world_of

from closeranks.events import Diagnosed, IncidentClosed


def leave(*names):
    return lambda world: [world.leave(name) for name in names]


def test_seats_of_a_node_that_leaves_are_taken_over_between_steps_and_none_is_lost():
    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={10: leave("n1")}).run()
    assert world.let_go == ["n1"]
    assert world.state.places == ("n0", "n0", "n2", "n2")
    assert [(e.outcome, e.steps_lost) for e in world.events(IncidentClosed)] == [("recovered", 0)]
    assert world.events(Diagnosed)[-1].fault == "preempted", "its machine has done nothing wrong"
    assert world.ended.outcome == "completed"
    assert world.steps_done == list(range(30))


def test_a_node_without_seats_may_go_at_once():
    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={10: leave("n2")}).run()
    assert (world.let_go, rungs(world)) == (["n2"], [])
    assert world.ended.outcome == "completed"


def test_where_nobody_can_take_the_seats_the_run_stops_in_order():
    world = world_of(["n0", "n1"], 4, 2, at_step={10: leave("n1")}).run()
    assert world.let_go == []
    assert (world.ended.outcome, world.ended.exit_code) == ("stopped", 143)
    assert world.ended.reason == "asked to stop; every seat finished its step and left"


def test_all_nodes_told_to_leave_at_once_are_a_run_that_stops_in_order():
    world = world_of(["n0", "n1", "n2"], 4, 2, at_step={10: leave("n0", "n1", "n2")}).run()
    assert world.let_go == ["n2"], "only the one that holds nothing"
    assert (world.ended.outcome, rungs(world)) == ("stopped", [])


def test_a_node_that_is_told_to_leave_amid_a_recovery_is_let_go_after_it():
    world = world_of(["n0", "n1", "n2", "n3"], 4, 2, at_step={10: lambda world: world.kill(1)})
    world.at(world.now_s, lambda: None)
    told = []

    def tell(decision):
        if not told and world.state.incident is not None:
            told.append(world.now_s)
            world.leave("n1")

    world.decision_hook = tell
    world.run()
    assert world.let_go == ["n1"]
    assert [(e.outcome, e.steps_lost) for e in world.events(IncidentClosed)] == [("recovered", 0)] * 2
    assert world.steps_done == list(range(30))
