"""Snapshot partners across failure domains: which peers an object goes to, and that it is found there by anybody."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.hooked_store import HookedStore

from closeranks.checkpoint.coded import CodedStore
from closeranks.checkpoint.problems import StoreProblem
from closeranks.checkpoint.spreading import spread
from closeranks.checkpoint.stores.memory import MemoryStore

KEYS = [f"data/a/w{writer:05d}.safetensors" for writer in range(12)]


def fates(*racks):
    """Of machines in these racks, each by itself."""
    return [frozenset({f"rack={rack}", f"machine=m{number}"}) for number, rack in enumerate(racks)]


def test_without_domains_the_order_stays_as_it_was_drawn():
    assert spread((2, 0, 1), 2, frozenset(), [frozenset()] * 3) == (2, 0, 1)


def test_the_owners_own_machine_and_rack_come_last():
    peers = fates("a", "a", "b")
    assert spread((0, 1, 2), 1, peers[0], peers) == (2, 0, 1)
    assert spread((0, 1, 2), 3, peers[0], peers) == (2, 1, 0)


def test_copies_stand_in_different_racks():
    peers = fates("a", "a", "b", "b", "c", "c")
    assert [peer // 2 for peer in spread(range(6), 3, frozenset(), peers)[:3]] == [0, 1, 2]


def test_the_own_machine_is_taken_only_where_there_is_no_other():
    # The sum alone preferred it to a third peer of the other rack.
    peers = [frozenset({f"rack={rack}", f"power={rack}", f"machine={n}"}) for n, rack in enumerate("abbb")]
    for first in range(4):
        order = [(first + n) % 4 for n in range(4)]
        assert 0 not in spread(order, 3, peers[0], peers)[:3]


def test_with_two_racks_both_hold_a_copy():
    peers = fates("a", "a", "b", "b")
    own = frozenset({"rack=a", "machine=m0"})
    for first in range(4):
        order = [(first + n) % 4 for n in range(4)]
        assert {peer // 2 for peer in spread(order, 2, own, peers)[:2]} == {0, 1}


@given(st.lists(st.sampled_from("abc"), min_size=3, max_size=9), st.integers(1, 4), st.randoms())
def test_every_peer_is_named_once(racks, count, random):
    order = list(range(len(racks)))
    random.shuffle(order)
    assert sorted(spread(order, count, frozenset({"rack=a"}), fates(*racks))) == list(range(len(racks)))


class Peers:
    """Two in each of three racks, in the memory of this process."""

    racks = "aabbcc"

    def __init__(self):
        self.stores = [HookedStore(MemoryStore()) for _ in self.racks]

    def writer(self, rack, data, parity):
        own = frozenset({f"rack={rack}", "machine=writer"})
        return CodedStore(self.stores, data, parity, fates=(own, fates(*self.racks)))

    def reader(self, data, parity):
        """As a node that knows of no domains."""
        return CodedStore(self.stores, data, parity)

    def lose(self, rack):
        for store, there in zip(self.stores, self.racks, strict=True):
            if there == rack:
                store.before = self._unreachable

    @staticmethod
    def _unreachable(_method, _key):
        raise StoreProblem("it cannot be reached", transient=True)


def test_a_rack_that_fails_as_one_takes_no_save_with_it():
    # Two copies lay side by side, where the draw had put them: a third of all saves was lost with the rack.
    for (lost, own), key in itertools.product(itertools.permutations("abc", 2), KEYS):
        peers = Peers()
        peers.writer(own, 1, 1).write(key, [memoryview(b"state")])
        peers.lose(lost)
        reader = peers.reader(1, 1)
        assert [row.key for row in reader.list("")] == [key]
        assert reader.read(key, 100) == b"state"


def test_the_loss_of_the_owners_rack_takes_no_single_copy():
    for own, key in itertools.product("abc", KEYS):
        peers = Peers()
        peers.writer(own, 1, 0).write(key, [memoryview(b"state")])
        holders = {rack for store, rack in zip(peers.stores, peers.racks, strict=True) if list(store.list(""))}
        assert own not in holders


def test_whoever_reads_asks_each_peer_for_the_fragment_that_it_has():
    for lost in (False, True):
        peers, asked = Peers(), []
        peers.writer("a", 2, 1).write(KEYS[0], [memoryview(b"state " * 50)])
        for store in peers.stores:
            store.before = lambda method, key, asked=asked: asked.append(key) if method == "read" else None
        reader = peers.reader(2, 1)
        holders = [store for store in peers.stores if list(store.inner.list(""))]
        if lost:
            holders[0].before = peers._unreachable
        assert reader.read(KEYS[0], 300) == b"state " * 50
        assert len(asked) == len(set(asked)) == 2
