"""No more bytes per second than asked for, over all threads."""

import pytest

from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.memory import PIECE_BYTES, MemoryStore
from closeranks.checkpoint.stores.paced import PacedStore


class Time:
    def __init__(self):
        self.now_s = 100.0
        self.slept_s = 0.0

    def clock(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        self.slept_s += seconds


@pytest.fixture
def time():
    return Time()


def paced(time, rate, inner=None):
    return PacedStore(MemoryStore() if inner is None else inner, rate, clock=time.clock, sleep=time.sleep)


def test_a_write_takes_its_bytes_over_the_rate_less_the_last_piece(time):
    pieces = 4
    store = paced(time, PIECE_BYTES / 2)
    store.write("data/a", [memoryview(bytes(pieces * PIECE_BYTES))])
    assert time.slept_s == pytest.approx(2.0 * (pieces - 1))


def test_writes_one_after_the_other_share_the_rate(time):
    store = paced(time, 100.0)
    for n in range(5):
        store.write(f"data/{n}", [memoryview(bytes(50))])
    assert time.slept_s == pytest.approx(4 * 0.5)


def test_time_that_was_not_used_is_not_saved_up(time):
    store = paced(time, 100.0)
    time.now_s += 1_000_000
    store.write("data/a", [memoryview(bytes(500))])
    store.write("data/b", [memoryview(bytes(500))])
    assert time.slept_s == pytest.approx(5.0)


def test_reads_entries_and_indices_are_not_held_up(time):
    store = paced(time, 1.0)
    store.write("data/a", [memoryview(b"0123456789")])
    store.create("log/1", b"x" * 1000)
    assert store.read("data/a", 10) == b"0123456789"
    got = bytearray(4)
    store.read_into("data/a", 2, memoryview(got))
    assert got == b"2345"
    assert [row.key for row in store.list("")] == ["data/a", "log/1"]
    store.delete(["data/a"])
    assert time.slept_s == 0


def test_the_caller_still_sees_every_piece(time, tmp_path):
    store = paced(time, 1e12, DirectoryStore(tmp_path / "store"))
    data, seen = bytes(range(256)) * 100_000, {}
    store.write("data/a", [memoryview(data)], lambda at, piece: seen.update({at: bytes(piece)}))
    assert b"".join(piece for _, piece in sorted(seen.items())) == data


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="expected a rate above 0 bytes per second"):
        PacedStore(MemoryStore(), rate)
