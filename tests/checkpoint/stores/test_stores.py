"""What every kind of home promises, asked of each."""

import threading

import numpy as np
import pytest

from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.stores.store import Listed

BIG_BYTES = 20 * 2**20 + 4096 + 77  # several pieces, several parts of an upload, and a tail


def pattern(length, seed=1):
    block = bytes((i * 131 + seed) % 251 for i in range(64 * 1024 + 13))
    return memoryview((block * (length // len(block) + 1))[:length])


def keys(store, prefix="", after=""):
    return [row.key for row in store.list(prefix, after)]


def test_of_two_creates_the_first_wins_and_stays(store):
    assert store.create("log/0000000001.json", b"first")
    assert not store.create("log/0000000001.json", b"second")
    assert store.read("log/0000000001.json", 100) == b"first"


def test_of_many_creates_at_once_exactly_one_wins(store):
    start, won = threading.Barrier(6), []

    def create(n):
        start.wait(20)
        if store.create("log/0000000007.json", f"writer {n}".encode()):
            won.append(n)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(won) == 1
    assert store.read("log/0000000007.json", 100) == f"writer {won[0]}".encode()


def test_a_written_object_is_its_parts_one_after_the_other(store):
    data = pattern(BIG_BYTES)
    parts = [data[:5], data[5:5], data[5 : 9 * 2**20 + 1], data[9 * 2**20 + 1 :]]
    assert store.write("data/a/w00000.safetensors", parts) == BIG_BYTES
    got = bytearray(BIG_BYTES)
    store.read_into("data/a/w00000.safetensors", 0, memoryview(got))
    assert got == data


def test_every_byte_is_shown_once_before_it_is_written(store):
    data = pattern(BIG_BYTES, seed=3)
    seen, lock, most = bytearray(BIG_BYTES), threading.Lock(), 0
    times = np.zeros(BIG_BYTES, np.uint8)

    def on_piece(at, piece):
        nonlocal most
        with lock:
            most = max(most, len(piece))
            seen[at : at + len(piece)] = piece
            times[at : at + len(piece)] += 1

    store.write("data/a/w00001.safetensors", [data[:77], data[77:]], on_piece)
    assert seen == data
    assert times.min() == times.max() == 1
    assert most <= 16 * 2**20


def test_an_error_while_a_piece_is_shown_leaves_no_object(store):
    def refuse(at, piece):
        raise ValueError("the caller's own")

    for length in (10, BIG_BYTES):
        with pytest.raises(ValueError, match="the caller's own"):
            store.write("data/a/w00002.safetensors", [pattern(length)], refuse)
        assert keys(store, "data/") == []


def test_an_existing_object_is_never_overwritten(store):
    for length in (3, BIG_BYTES):
        store.write(f"data/a/{length}", [pattern(length)])
        with pytest.raises(StoreProblem, match="expected no such object, got one; it was left alone") as caught:
            store.write(f"data/a/{length}", [pattern(length, seed=9)])
        assert not caught.value.transient
        first = bytearray(3)
        store.read_into(f"data/a/{length}", 0, memoryview(first))
        assert first == pattern(3)


def test_an_empty_object_is_an_object(store):
    store.write("data/a/empty", [])
    assert store.read("data/a/empty", 10) == b""
    store.read_into("data/a/empty", 0, memoryview(bytearray(0)))
    assert [(row.key, row.length) for row in store.list("data/")] == [("data/a/empty", 0)]


def test_a_range_is_read_into_its_place(store):
    store.write("data/a/x", [memoryview(b"0123456789")])
    target = bytearray(b"........")
    store.read_into("data/a/x", 3, memoryview(target)[2:6])
    assert target == b"..3456.."


@pytest.mark.parametrize("begin", [8, 10, 1000])
def test_an_object_too_short_for_the_range_is_damaged(store, begin):
    store.write("data/a/x", [memoryview(b"0123456789")])
    with pytest.raises(Damaged, match=r"data/a/x: expected .*, got .*restore from another home") as caught:
        store.read_into("data/a/x", begin, memoryview(bytearray(3)))
    assert caught.value.object_key == "data/a/x"


def test_an_absent_object_is_damaged_and_names_itself(store):
    for read in (
        lambda: store.read("data/a/none", 10),
        lambda: store.read_into("data/a/none", 0, memoryview(bytearray(1))),
    ):
        with pytest.raises(Damaged, match=r"data/a/none: expected .*, got none; restore from another home") as caught:
            read()
        assert caught.value.object_key == "data/a/none"


def test_an_object_longer_than_the_limit_is_not_read(store):
    store.create("data/a/x", b"0123456789")
    with pytest.raises(Damaged, match=r"at most 9 bytes, got .* 10"):
        store.read("data/a/x", 9)
    assert store.read("data/a/x", 10) == b"0123456789"


def test_objects_are_listed_in_the_order_of_their_keys(store):
    names = [
        "data/a-b/x",
        "data/a.b/x",
        "data/a/x",
        "data/a/y/z",
        "data/a0",
        "log/0000000001.json",
        "log/0000000002.json",
    ]
    for name in reversed(names):
        store.create(name, name.encode())
    assert keys(store) == sorted(names) == names
    row = next(store.list("data/a-b"))
    assert isinstance(row, Listed)
    assert (row.key, row.length) == ("data/a-b/x", 10)
    assert row.modified_wall_s > 1.6e9


def test_a_listing_begins_with_the_prefix_and_after_the_given_key(store):
    for name in ("data/t1-a/w00000.json", "data/t1-a/w00001.json", "data/t2-b/w00000.json", "data0"):
        store.create(name, b"x")
    assert keys(store, "data/t1-a/w0000") == ["data/t1-a/w00000.json", "data/t1-a/w00001.json"]
    assert keys(store, "data/t1-a/w00000.json") == ["data/t1-a/w00000.json"]
    assert keys(store, "data/", "data/t1-a/w00001.json") == ["data/t2-b/w00000.json"]
    assert keys(store, "data/", "data/t1-a/w00000") == keys(store, "data/")
    assert keys(store, "nothing/") == []


def test_deleted_objects_are_gone_and_absent_ones_no_problem(store):
    for name in ("data/a/x", "data/a/y"):
        store.create(name, b"x")
    store.delete(["data/a/x", "data/a/never", "data/none/x"])
    store.delete([])
    assert keys(store) == ["data/a/y"]
    assert store.create("data/a/x", b"again")


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "data/../../x",
        "/etc/passwd",
        "",
        "data//x",
        "data/",
        "Data/x",
        "data/.hidden",
        "data/x\0",
        "data/x\n",
        "é",
        "a/" * 300 + "a",
        "a" * 201,
    ],
)
def test_a_name_that_could_lead_out_of_the_store_is_refused_by_every_method(store, name):
    store.create("data/a/x", b"x")
    for call in (
        lambda: store.create(name, b""),
        lambda: store.write(name, [memoryview(b"x")]),
        lambda: store.read(name, 10),
        lambda: store.read_into(name, 0, memoryview(bytearray(1))),
        lambda: store.delete([name]),
    ):
        with pytest.raises(
            StoreProblem, match=r"expected a key of parts of a-z.*got .*could lead out of the store"
        ) as caught:
            call()
        assert store.url in str(caught.value)
        assert "closeranks ckpt verify" in str(caught.value)
    assert keys(store) == ["data/a/x"]


@pytest.mark.parametrize("prefix", ["../", "/", "data//", "DATA"])
def test_a_listing_cannot_lead_out_of_the_store_either(store, prefix):
    with pytest.raises(StoreProblem, match="expected the beginning of a key"):
        list(store.list(prefix))
