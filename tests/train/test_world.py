from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from closeranks.messages import Seat
from closeranks.train.poison import PeerLost
from closeranks.train.world import World
from closeranks.vitals import Vitals, create_memfd


@pytest.fixture
def world() -> Iterator[World]:
    fd = create_memfd("closeranks-test")
    vitals = Vitals(fd)
    yield World(3, 0, vitals)
    vitals.close()
    os.close(fd)


def seat_of(term: int) -> Seat:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    return Seat(term=term, seat=0, incarnation=1, size=3, store_host="127.0.0.1", store_port=port)


def test_a_term_that_was_ended_before_it_began_here_is_left_at_once(world: World) -> None:
    """Two nodes were out of reach, one after the other: the term for the first was ended 8 ms after it was told.

    The control thread heard of the end while the training thread still undid its step. It then met nobody at the
    store of that term, and was replaced after two minutes, though nothing was wrong with it.
    """
    world.interrupt(2, "n2 was out of reach")
    with pytest.raises(PeerLost, match="n2 was out of reach"):
        world.regroup(seat_of(2))
    assert not world.needs_waking


def test_a_term_that_ends_while_its_store_is_called_is_left_at_once(world: World) -> None:
    """Its store was closed just then, for a newer term: torch went on trying for 26 s, and all waited for this rank."""
    listening = socket.create_server(("127.0.0.1", 0))
    host, port = listening.getsockname()

    def end_it() -> None:
        held = [listening.accept()[0] for _ in range(2)]  # a look whether it is there, then torch's client
        for one in (listening, *held):  # which finds it closed from now on
            one.close()
        world.interrupt(2, "n2 was out of reach")

    ends = threading.Thread(target=end_it)
    ends.start()
    began_s = time.monotonic()
    with pytest.raises(PeerLost, match="n2 was out of reach"):
        world.regroup(Seat(term=2, seat=0, incarnation=1, size=3, store_host=host, store_port=port))
    ends.join()
    assert time.monotonic() - began_s < 10  # what torch is told to try for, and exceeds


def test_the_end_of_an_older_term_does_not_end_a_newer_one(world: World) -> None:
    world.interrupt(2, "n2 was out of reach")
    with pytest.raises(PeerLost, match="no store at"):  # it went as far as looking for its store
        world.regroup(seat_of(3))
