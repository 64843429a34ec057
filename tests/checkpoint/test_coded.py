import itertools
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint.hooked_store import HookedStore

from closeranks.checkpoint import fragments
from closeranks.checkpoint.coded import CodedStore
from closeranks.checkpoint.problems import Damaged, StoreProblem, StoreRefused
from closeranks.checkpoint.stores.memory import MemoryStore

KEY = "data/a/w00000.safetensors"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(fragments, "BLOCK_BYTES", 64)


class Peers:
    """Six of them (or more), each in the memory of this process, with switches to fail."""

    def __init__(self, count=6, data=4, parity=2):
        self.memories = [MemoryStore() for _ in range(count)]
        self.stores = [HookedStore(memory) for memory in self.memories]
        for number, store in enumerate(self.stores):
            store.url = f"peer {number}"
        self.now_s = 0.0
        self.code = (data, parity)
        self.coded = self.open()

    def open(self):
        return CodedStore(self.stores, *self.code, clock=lambda: self.now_s)

    def lose(self, *numbers):
        for number in numbers:
            self.stores[number].before = self.unreachable

    def forget(self, number):
        memory = self.memories[number]
        memory.delete([row.key for row in memory.list("")])

    @staticmethod
    def unreachable(_method, _key):
        raise StoreProblem("it cannot be reached", transient=True)


def write(coded, data, key=KEY):
    return coded.write(key, [memoryview(data)])


def read(coded, length, begin=0, key=KEY):
    target = bytearray(length)
    coded.read_into(key, begin, memoryview(target))
    return bytes(target)


@pytest.mark.parametrize("lost", list(itertools.combinations(range(6), 2)))
def test_any_two_of_six_peers_may_be_lost(lost):
    peers, data = Peers(), random.Random(1).randbytes(1000)
    write(peers.coded, data)
    peers.lose(*lost)
    again = peers.open()
    assert read(again, 1000) == data
    assert [row.key for row in again.list("data/")] == [KEY]


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_any_range_of_any_object_reads_back_whatever_is_lost_and_damaged(seed):
    draw = random.Random(seed)
    peers, data = Peers(), draw.randbytes(draw.choice([0, 1, 5, 255, 256, 257, 900]))
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(3))
    parts = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
    assert peers.coded.write(KEY, [memoryview(part) for part in parts]) == len(data)
    lost, damaged = draw.sample(range(6), 2)
    peers.lose(lost)
    for key, (stored, at) in list(peers.memories[damaged]._objects.items()):
        spoiled = bytearray(stored)
        spoiled[draw.randrange(len(spoiled))] ^= 1 + draw.randrange(255)
        peers.memories[damaged]._objects[key] = (spoiled, at)
    begin = draw.randrange(len(data) + 1)
    end = draw.randrange(begin, len(data) + 1)
    assert read(peers.open(), end - begin, begin) == data[begin:end], f"seed {seed}"


def test_with_three_of_six_lost_the_object_is_refused_and_not_listed():
    peers = Peers()
    write(peers.coded, bytes(1000))
    for number in (0, 2, 5):
        peers.forget(number)
    again = peers.open()
    assert list(again.list("data/")) == []
    with pytest.raises(Damaged, match="4 good fragments of stripe 0, got 3"):
        read(again, 1000)


def test_with_more_peers_silent_than_may_be_lost_nothing_is_said_to_be_absent():
    peers = Peers()
    write(peers.coded, bytes(1000))
    peers.lose(0, 1, 2)
    with pytest.raises(StoreProblem, match="3 do not answer"):
        peers.open().read(KEY, 1000)


def test_an_object_that_nobody_has_is_refused():
    with pytest.raises(Damaged, match="got none"):
        Peers().coded.read(KEY, 10)


def test_a_range_beyond_the_end_is_refused():
    peers = Peers()
    write(peers.coded, bytes(100))
    with pytest.raises(Damaged, match="got an object of 100"):
        read(peers.coded, 50, begin=51)


def test_copies_are_a_code_as_well():
    peers = Peers(count=3, data=1, parity=2)
    write(peers.coded, b"x" * 300)
    peers.lose(0, 1)
    assert peers.open().read(KEY, 300) == b"x" * 300


def test_peers_in_another_order_and_one_more_still_give_the_object():
    peers, data = Peers(), random.Random(2).randbytes(1000)
    write(peers.coded, data)
    peers.stores = [HookedStore(MemoryStore()), *reversed(peers.stores)]
    assert read(peers.open(), 1000) == data


def test_a_peer_that_fails_is_passed_over_and_said():
    peers, data = Peers(), random.Random(3).randbytes(1000)
    peers.lose(4)
    assert write(peers.coded, data) == 1000
    assert "cannot be reached" in peers.coded.weakened
    assert read(peers.coded, 1000) == data
    peers.stores[4].before = lambda _method, _key: None
    peers.now_s += 1000.0
    write(peers.coded, data, "data/b/w00000.safetensors")
    assert peers.coded.weakened == ""


def test_a_peer_that_failed_is_not_asked_again_for_a_while():
    peers, asked = Peers(), []
    peers.lose(4)
    write(peers.coded, bytes(1000))
    peers.stores[4].before = lambda _method, key: asked.append(key)
    write(peers.coded, bytes(1000), "data/b/x")
    assert asked == []
    peers.now_s += 1000.0
    write(peers.coded, bytes(1000), "data/c/x")
    assert asked


def test_a_wrong_token_of_one_peer_weakens_and_does_not_stop():
    peers = Peers()

    def refused(_method, _key):
        raise StoreRefused("the token was refused")

    peers.stores[1].before = refused
    write(peers.coded, bytes(1000))
    assert "token" in peers.coded.weakened


def test_when_too_few_peers_take_an_object_the_write_fails_with_their_reasons():
    peers = Peers()
    peers.lose(0, 1, 2)
    with pytest.raises(StoreProblem, match="expected 4 peers or more to take stripe 0, got 3: it cannot be reached"):
        write(peers.coded, bytes(1000))


def test_every_byte_is_shown_once_before_it_is_written():
    peers, data, seen = Peers(), random.Random(4).randbytes(1003), {}
    peers.coded.write(KEY, [memoryview(data)], lambda at, piece: seen.update({at: bytes(piece)}))
    assert b"".join(seen[at] for at in sorted(seen)) == data


def test_nothing_reads_the_parts_any_more_when_a_write_was_given_up():
    peers, reading = Peers(), threading.Semaphore(0)
    held = threading.Event()

    def hold(_method, _key):
        reading.release()
        held.wait(10.0)

    peers.stores[0].before = hold

    def give_up(at, _piece):
        if at >= 256:
            reading.acquire()
            held.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        peers.coded.write(KEY, [memoryview(bytes(1000))], give_up)
    assert all(peer._thread._work_queue.empty() for peer in peers.coded._peers)


def test_an_object_is_created_once():
    peers = Peers()
    assert peers.coded.create(KEY, b"one")
    assert not peers.open().create(KEY, b"two")
    assert peers.open().read(KEY, 10) == b"one"


def test_listing_begins_after_a_key_and_goes_in_order():
    peers = Peers()
    keys = ["data/a/x", "data/a/y", "data/b/x"]
    for key in reversed(keys):
        write(peers.coded, bytes(300), key)
    assert [row.key for row in peers.coded.list("data/")] == keys
    assert [row.key for row in peers.coded.list("data/a", after="data/a/x")] == ["data/a/y"]
    assert [row.length for row in peers.coded.list("data/b/")] == [300]


def test_a_deleted_object_leaves_nothing_behind():
    peers = Peers()
    write(peers.coded, bytes(1000))
    write(peers.coded, bytes(10), "data/b/x")
    peers.coded.delete([KEY, "data/absent"])
    assert [row.key for row in peers.coded.list("")] == ["data/b/x"]
    assert sum(memory.used_bytes for memory in peers.memories) < 1000
    with pytest.raises(Damaged):
        peers.coded.read(KEY, 1000)


def test_more_fragments_than_peers_are_refused():
    with pytest.raises(ValueError, match="6 peers or more, got 5"):
        CodedStore([MemoryStore()] * 5, 4, 2)


def test_memory_for_parity_does_not_grow_with_the_object():
    peers, most = Peers(), []
    for store in peers.stores:
        store.before = lambda _method, _key: most.append(sum(p._thread._work_queue.qsize() for p in peers.coded._peers))
    write(peers.coded, bytes(256 * 50))
    assert max(most) <= 2 * 6
