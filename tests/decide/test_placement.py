from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.decide.domains import failed_domain
from closeranks.decide.placement import Site, place, rank
from closeranks.decide.state import Node


def test_nodes_are_in_the_order_of_their_ranks():
    assert sorted(["n10", "n2", "n0", "head"], key=rank) == ["head", "n0", "n2", "n10"]


def test_a_seat_stays_where_its_node_has_room():
    sites = [Site(name="n0", room=4, spares=4), Site(name="n1", room=1)]
    assert place({2: "n1"}, sites) == {2: "n1"}


def test_seats_of_a_lost_node_move_together():
    sites = [Site(name="n1", room=1, spares=1), Site(name="n2", room=2)]
    assert place({4: "n9", 5: "n9"}, sites) == {4: "n2", 5: "n2"}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Site(name="n7", room=2, spares=2), Site(name="n2", room=2)),
        (Site(name="n7", room=2, spares=2), Site(name="n2", room=2, spares=2, exposed=1)),
        (Site(name="n2", room=2), Site(name="n7", room=2)),
    ],
    ids=["where spares wait", "away from failed domains", "the lower rank"],
)
def test_a_node_is_preferred(better, worse):
    assert place({0: "n9", 1: "n9"}, [worse, better]) == {0: better.name, 1: better.name}


sites = st.lists(
    st.builds(
        Site,
        name=st.integers(0, 8).map("n{}".format),
        room=st.integers(0, 3),
        spares=st.integers(0, 3),
        exposed=st.integers(0, 2),
    ),
    unique_by=lambda site: site.name,
    max_size=6,
)


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 8).map("n{}".format)), sites)
def test_no_node_gets_more_than_it_has_room_for_and_no_room_is_left_while_a_seat_waits(homes, sites):
    placed = place(homes, sites)
    room = {site.name: site.room for site in sites}
    assert all(seats <= room[name] for name, seats in Counter(placed.values()).items())
    assert len(placed) == min(len(homes), sum(room.values()))


def node(name, **domains):
    return Node(name=name, slots=1, domains=domains)


@pytest.mark.parametrize(
    ("lost", "living", "domain"),
    [
        ([], [node("n1", rack="b")], ""),
        ([node("n1", rack="a")], [node("n2", rack="b")], "rack a"),
        ([node("n1", rack="b")], [], ""),
        ([node("n1", rack="a")], [node("n2", rack="a"), node("n3", rack="a")], ""),
        ([node("n1", rack="a", power="p")], [node("n2", rack="b", power="p")], "rack a"),
        ([node("n1", rack="b", power="p")], [node("n2", rack="a", power="q")], "power p"),
    ],
    ids=["alone", "two of a rack", "two racks", "most of the rack live", "the narrower", "another level"],
)
def test_the_domain_that_failed_is_the_one_that_lost_most_of_its_nodes(lost, living, domain):
    assert failed_domain(node("n0", rack="a", power="p"), lost, living) == domain
