"""A run of several nodes starts once its nodes are there."""

from closeranks.decide.controller import initial, step
from closeranks.decide.placement import first_layout
from closeranks.decide.protocol import Begun, EndRun, NodeFitness, NodeJoined, NodeLost, StartGroup, Tick
from closeranks.decide.state import Life, Settings


def told(settings, *facts):
    state, decided = initial(settings), []
    for at_s, fact in facts:
        state, decisions = step(state, fact, at_s)
        decided += decisions
    return state, decided


def join(node, slots=2):
    return NodeJoined(node=node, slots=slots)


def test_the_group_is_started_when_the_last_node_joins_and_seats_follow_the_order_of_ranks():
    settings = Settings(seats=6, nodes_needed=3)
    facts = [(0, join("n10")), (1, Begun()), (2, join("n0")), (3, join("n2")), (11, Tick())]
    state, decided = told(settings, *facts)
    (start,) = [d for d in decided if isinstance(d, StartGroup)]
    assert start.nodes == ("n0", "n0", "n2", "n2", "n10", "n10")
    assert start.procs == (1, 2, 3, 4, 5, 6)
    assert state.life is Life.JOINING


def test_a_quick_spare_node_does_not_take_the_seats_of_one_that_is_meant_to_hold_them():
    settings = Settings(seats=2, nodes_needed=2)
    facts = [(0, Begun()), (1, join("n2")), (2, join("n0")), (3, Tick())]
    state, decided = told(settings, *facts)
    assert (state.life, decided) == (Life.ASSEMBLING, [])
    _, decided = told(settings, *facts, (4, join("n1")))
    assert [d.nodes for d in decided if isinstance(d, StartGroup)] == [("n0", "n1")]
    _, decided = told(settings, *facts, (10, Tick()))  # it does not come
    assert [d.nodes for d in decided if isinstance(d, StartGroup)] == [("n0", "n2")]


def test_nodes_that_joined_before_the_beginning_count():
    _, decided = told(Settings(seats=2, nodes_needed=2), (0, join("n0")), (0, join("n1")), (1, Begun()))
    assert [d.nodes for d in decided] == [("n0", "n1")]


def test_a_node_that_left_again_does_not_count():
    settings = Settings(seats=4, nodes_needed=2)
    facts = [(0, Begun()), (1, join("n0")), (2, NodeLost(node="n0", detail="")), (3, join("n1"))]
    state, decided = told(settings, *facts)
    assert state.life is Life.ASSEMBLING
    assert not [d for d in decided if isinstance(d, StartGroup)]


def test_nodes_that_do_not_come_in_time_are_named():
    settings = Settings(seats=6, nodes_needed=3)
    facts = [(0, Begun()), (1, join("n1")), (2, join("n7")), (599, Tick()), (600, Tick())]
    _, (end,) = told(settings, *facts)
    assert isinstance(end, EndRun)
    assert (end.outcome, end.exit_code) == ("failed", 1)
    assert "2 of 3 nodes joined, n0, n2 did not within 600 s; there are: n1, n7" in end.reason


def test_nodes_that_came_and_get_no_work_are_told_with_their_reasons():
    """They were told to be missing, and to be started, though they were there with a full disk."""
    settings = Settings(seats=2, nodes_needed=2)
    full = NodeFitness(node="n0", unfit="room: /runs has 24 MiB left")
    _, (end,) = told(settings, (0, Begun()), (1, full), (2, join("n1")), (600, Tick()))
    assert "n0 did not within 600 s; there are: n1; n0 cannot take workers: room: /runs has 24 MiB left" in end.reason


def test_of_many_nodes_that_get_no_work_a_few_are_named_and_the_rest_counted():
    full = [(k, NodeFitness(node=f"n{k}", unfit="room")) for k in range(1, 12)]
    _, (end,) = told(Settings(seats=20, nodes_needed=20), (0, Begun()), *full, (600, Tick()))
    named = "; n1 cannot take workers: room; n2 cannot take workers: room; n3 cannot take workers: room"
    assert f"{named}; nor can 8 more; start" in end.reason


def test_a_node_that_was_mended_is_told_no_longer():
    full = NodeFitness(node="n0", unfit="room")
    settings = Settings(seats=3, nodes_needed=3)
    _, (end,) = told(settings, (0, Begun()), (1, full), (2, join("n0")), (600, Tick()))
    assert "cannot take workers" not in end.reason


def test_enough_nodes_with_too_few_slots_are_not_enough():
    _, (end,) = told(
        Settings(seats=4, nodes_needed=2), (0, Begun()), (1, join("n0")), (2, join("n1", 1)), (600, Tick())
    )
    assert "room for 3 of 4 seats" in end.reason


def test_without_need_of_nodes_a_run_starts_at_once():
    _, decided = told(Settings(seats=2), (0, Begun()))
    assert decided == [StartGroup(term=1, procs=(1, 2))]


def test_free_slots_are_left_on_every_node_and_take_what_a_smaller_node_cannot():
    assert first_layout(4, {"n0": 8, "n1": 8}, 2) == ("n0", "n0", "n1", "n1")
    assert first_layout(4, {"n0": 4, "n1": 1, "n2": 4}, 2) == ("n0", "n0", "n0", "n1")
    assert first_layout(4, {"n0": 4}, 2) == ()
