import threading

import numpy as np
import pytest
from msgspec.structs import replace
from tests.checkpoint.hooked_store import HookedStore
from tests.checkpoint.images import ATTEMPT, bytes_of, fill, whole

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.digests import blake3
from closeranks.checkpoint.format import ShardRef
from closeranks.checkpoint.image import image_key, index_key
from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.reading import Checks, Region, fetch, read_index, verify_shard
from closeranks.checkpoint.shard_index import encode_index
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.writing import Options, write_shard

LEAVES = [whole("w", 64, 96), whole("b", 7, dtype="BF16"), whole("none", 0, 3), whole("step", dtype="I64")]


class Counting(MemoryStore):
    """Notes every read of data."""

    def __init__(self):
        super().__init__()
        self.reads = []

    def read_into(self, key, begin, target):
        self.reads.append((key, begin, len(target)))
        super().read_into(key, begin, target)

    def change(self, key, data):
        self.delete([key])
        self.create(key, data)


@pytest.fixture
def store():
    return Counting()


@pytest.fixture
def saved(store):
    arena = Arena.create("test")
    yield write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), Options(chunk_bytes=4096)).index
    arena.close()


def publish(store, index):
    data = encode_index(index)
    store.change(index_key(ATTEMPT, 0), data)
    return ShardRef(
        writer=0, object=index_key(ATTEMPT, 0), length=len(data), blake3=blake3(data), image_bytes=index.image_bytes
    )


def w_of(offsets, shape):
    target = bytearray(shape[0] * shape[1] * 4)
    return Region(0, offsets, shape, memoryview(target)), target


def flip(store, key, at):
    data = bytearray(store.read(key, 2**20))
    data[at] ^= 1
    store.change(key, bytes(data))


def test_a_box_gets_its_bytes_and_only_the_extents_that_have_some_of_them_are_read(store, saved):
    region, target = w_of((11, 0), (5, 96))
    fetch(store, saved, [region])
    full = np.frombuffer(bytes_of("w", 64 * 96 * 4), np.uint32).reshape(64, 96)
    assert bytes(target) == full[11:16].tobytes()
    assert len(store.reads) == 1
    assert store.reads[0][2] == 4096


def test_columns_are_cut_out_of_every_extent_which_is_read_once(store, saved):
    halves = [w_of((0, 0), (64, 40)), w_of((0, 40), (64, 56))]
    fetch(store, saved, [region for region, _ in halves])
    full = np.frombuffer(bytes_of("w", 64 * 96 * 4), np.uint32).reshape(64, 96)
    assert bytes(halves[0][1]) == full[:, :40].tobytes()
    assert bytes(halves[1][1]) == full[:, 40:].tobytes()
    assert len(store.reads) == len(set(store.reads)) == 6


@pytest.mark.parametrize("window_bytes", [1, 999, 1000, 4096])
def test_however_short_the_windows_are_every_box_gets_its_bytes_and_each_byte_is_read_once(
    store, saved, monkeypatch, window_bytes
):
    monkeypatch.setattr("closeranks.checkpoint.reading.WINDOW_BYTES", window_bytes)
    boxes = [((0, 0), (64, 40)), ((0, 40), (64, 56)), ((0, 0), (64, 96)), ((11, 3), (5, 7))]
    regions = [w_of(*box) for box in boxes]
    small = bytearray(14)
    fetch(store, saved, [*(region for region, _ in regions), Region(1, (0,), (7,), memoryview(small))])
    full = np.frombuffer(bytes_of("w", 64 * 96 * 4), np.uint32).reshape(64, 96)
    for ((y, x), (height, width)), (_, target) in zip(boxes, regions, strict=True):
        assert bytes(target) == full[y : y + height, x : x + width].tobytes()
    assert bytes(small) == bytes_of("b", 14)
    places = [place for _, begin, length in store.reads for place in range(begin, begin + length)]
    assert max(length for _, _, length in store.reads) <= window_bytes
    assert len(places) == len(set(places))


def test_a_store_that_is_not_near_is_asked_once_for_each_extent_and_reads_to_the_place(store, saved, monkeypatch):
    monkeypatch.setattr("closeranks.checkpoint.reading.WINDOW_BYTES", 1000)
    region, target = w_of((0, 0), (64, 96))
    fetch(HookedStore(store), saved, [region])
    assert bytes(target) == bytes_of("w", 64 * 96 * 4)
    w = saved.slices[0]
    touched = [extent for extent in saved.extents if w.at < extent.at + extent.length and extent.at < w.at + w.length]
    assert sorted(store.reads) == [(extent.object, extent.begin, extent.stored) for extent in touched]


def test_an_empty_region_and_none_at_all_read_nothing(store, saved):
    fetch(store, saved, [])
    fetch(store, saved, [Region(2, (0, 0), (0, 3), memoryview(bytearray(0)))])
    assert store.reads == []


@pytest.mark.parametrize("checks", list(Checks))
def test_a_flipped_bit_in_what_is_read_is_refused_with_the_place(store, saved, checks):
    flip(store, image_key(ATTEMPT, 0), saved.slices[0].at + 10_000)
    region, _ = w_of((0, 0), (64, 96))
    with pytest.raises(Damaged, match=r"expected (xxh3|blake3)") as caught:
        fetch(store, saved, [region], checks=checks)
    assert caught.value.object_key == image_key(ATTEMPT, 0)
    with pytest.raises(Damaged):
        verify_shard(store, saved, checks=checks)


@pytest.mark.parametrize(
    ("kind", "compared"), [("blake3", {Checks.ALL, Checks.STRONG}), ("xxh3", {Checks.ALL, Checks.FAST})]
)
def test_each_way_to_check_compares_its_own_digest_and_all_means_both(store, saved, kind, compared):
    zeros = "0" * len(getattr(saved.extents[0], kind))
    lying = replace(saved, extents=tuple(replace(extent, **{kind: zeros}) for extent in saved.extents))
    for checks in Checks:
        if checks in compared:
            with pytest.raises(Damaged, match=f"expected {kind} 0000"):
                verify_shard(store, lying, checks=checks)
        else:
            verify_shard(store, lying, checks=checks)


@pytest.mark.parametrize("checks", list(Checks))
@pytest.mark.parametrize(("kept", "lost"), [("blake3", "xxh3"), ("xxh3", "blake3")])
def test_the_other_digest_is_compared_where_the_preferred_one_is_not_recorded(store, saved, checks, kept, lost):
    half = replace(saved, extents=tuple(replace(extent, **{lost: ""}) for extent in saved.extents))
    verify_shard(store, half, checks=checks)
    flip(store, image_key(ATTEMPT, 0), 5000)
    with pytest.raises(Damaged, match=f"expected {kept}"):
        verify_shard(store, half, checks=checks)


def test_an_extent_without_a_digest_is_refused_even_if_its_index_was_believed(store, saved):
    bare = replace(saved, extents=tuple(replace(extent, xxh3="", blake3="") for extent in saved.extents))
    with pytest.raises(Damaged, match="no digest is recorded"):
        verify_shard(store, bare)


@pytest.mark.parametrize("kept", [0, 100, 20_000])
def test_a_truncated_or_absent_object_is_refused(store, saved, kept):
    data = store.read(image_key(ATTEMPT, 0), 2**20)
    store.change(image_key(ATTEMPT, 0), data[:kept])
    with pytest.raises(Damaged):
        verify_shard(store, saved)
    store.delete([image_key(ATTEMPT, 0)])
    with pytest.raises(Damaged):
        verify_shard(store, saved)


def test_a_region_that_does_not_fit_is_a_mistake_of_the_caller_and_nothing_is_read(store, saved):
    for region in (
        Region(0, (0, 0), (64, 96), memoryview(bytearray(7))),
        Region(0, (0, 0), (64, 96), memoryview(bytes(64 * 96 * 4))),
        Region(0, (60, 0), (5, 96), memoryview(bytearray(5 * 96 * 4))),
    ):
        with pytest.raises(ValueError, match="'w'"):
            fetch(store, saved, [region])
    assert store.reads == []


def test_the_first_problem_ends_the_fetch_and_its_threads(store, saved):
    class Failing(MemoryStore):
        def read_into(self, key, begin, target):
            raise StoreProblem(f"{key}: {len(target)} bytes from {begin}: not reachable")

    with pytest.raises(StoreProblem, match="not reachable"):
        verify_shard(Failing(), saved, threads=2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("closeranks-read")]


def test_progress_ends_at_the_total(store, saved):
    told = []
    verify_shard(store, saved, lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (saved.image_bytes, saved.image_bytes)


def test_the_index_that_was_committed_is_read(store, saved):
    assert read_index(store, publish(store, saved)) == saved


@pytest.mark.parametrize(
    "lie",
    [
        {"length": 0},
        {"length": 2**50},
        {"length": 10},
        {"blake3": "0" * 64},
        {"writer": 1},
        {"image_bytes": 5},
        {"object": "data/../../etc/passwd"},
        {"object": "log/0000000001.json"},
        {"object": "data/" + ATTEMPT + "/w00001.json"},
    ],
)
def test_a_commit_that_lies_about_an_index_is_refused_and_not_obeyed(store, saved, lie):
    ref = publish(store, saved)
    with pytest.raises(Damaged):
        read_index(store, replace(ref, **lie))


def test_a_believed_index_that_lies_about_its_object_is_refused(store, saved):
    far = replace(saved, extents=tuple(replace(extent, begin=extent.begin + 2**40) for extent in saved.extents))
    with pytest.raises(Damaged):
        verify_shard(store, far)
