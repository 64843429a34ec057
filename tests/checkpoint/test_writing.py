import threading

import pytest
import safetensors
from msgspec.structs import replace
from tests.checkpoint.images import ATTEMPT, bytes_of, fill, whole

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.image import image_key
from closeranks.checkpoint.packing import BATCH_BYTES
from closeranks.checkpoint.problems import SaveFailed, StoreProblem
from closeranks.checkpoint.reading import Region, fetch, verify_shard
from closeranks.checkpoint.shard_index import index_problem
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.writing import Options, Previous, seal_index, write_shard

LEAVES = [whole("frozen", 100, 100), whole("adapter", 10, 100), *(whole(f"bias{n}", 50) for n in range(20))]
SMALL = Options(chunk_bytes=4096)
NEXT = "t00000001-s000000000004-0123abcd"
THIRD = "t00000001-s000000000005-0123abcd"


@pytest.fixture
def arena():
    made = Arena.create("test")
    yield made
    made.close()


@pytest.fixture
def store():
    return MemoryStore()


def adapter_of(seed):
    return lambda name, length: bytes_of(name, length, seed if name == "adapter" else 0)


def all_bytes(store, index):
    """What the store gives for every slice, by name."""
    targets = [bytearray(part.length) for part in index.slices]
    regions = [
        Region(number, (0,) * len(part.shape), part.shape, memoryview(target))
        for number, (part, target) in enumerate(zip(index.slices, targets, strict=True))
    ]
    fetch(store, index, regions)
    return {part.name: bytes(target) for part, target in zip(index.slices, targets, strict=True)}


def test_a_whole_save_is_one_object_that_any_safetensors_reader_opens(arena, store):
    written = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    assert [item.key for item in store.list("")] == [image_key(ATTEMPT, 0)]
    image = store.read(image_key(ATTEMPT, 0), 2**20)
    assert len(image) == written.written_bytes == written.index.image_bytes
    found = dict(safetensors.deserialize(image))
    assert bytes(found["frozen"]["data"]) == bytes_of("frozen", 40_000)
    assert written.bases == written.index.bases == ()


def test_every_extent_has_both_digests_and_reads_back(arena, store):
    index = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL).index
    assert all(extent.xxh3 and extent.blake3 for extent in index.extents)
    assert index_problem(index) == ""
    assert all_bytes(store, index) == {part.name: bytes_of(part.name, part.length) for part in index.slices}


def test_unchanged_extents_are_referred_to_and_not_written_again(arena, store):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    second = write_shard(
        store, NEXT, 0, fill(arena, LEAVES, content=adapter_of(1)), SMALL, Previous(7, first.index, depth=0)
    )
    assert second.bases == second.index.bases == (7,)
    assert 4000 <= second.written_bytes <= 8192
    assert second.written_bytes + second.reused_bytes == second.index.image_bytes
    assert {extent.object for extent in second.index.extents} == {image_key(ATTEMPT, 0), image_key(NEXT, 0)}
    assert all_bytes(store, second.index)["adapter"] == bytes_of("adapter", 4000, 1)
    assert all_bytes(store, second.index)["frozen"] == bytes_of("frozen", 40_000)


def test_a_save_of_which_nothing_changed_writes_no_object(arena, store):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    second = write_shard(store, NEXT, 0, fill(arena, LEAVES), SMALL, Previous(7, first.index))
    assert (second.written_bytes, second.reused_bytes) == (0, second.index.image_bytes)
    assert [item.key for item in store.list("")] == [image_key(ATTEMPT, 0)]
    verify_shard(store, second.index)


def test_reuse_of_reuse_refers_to_the_object_that_has_the_bytes(arena, store):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    second = write_shard(store, NEXT, 0, fill(arena, LEAVES, content=adapter_of(1)), SMALL, Previous(7, first.index))
    third = write_shard(
        store, THIRD, 0, fill(arena, LEAVES, content=adapter_of(2)), SMALL, Previous(9, second.index, depth=1)
    )
    assert third.bases == (9,)
    assert {extent.object for extent in third.index.extents} == {image_key(ATTEMPT, 0), image_key(THIRD, 0)}


def test_a_new_tensor_in_front_does_not_make_the_others_be_written_again(arena, store):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    more = [whole("new", 20, 100), *LEAVES]
    second = write_shard(store, NEXT, 0, fill(arena, more), SMALL, Previous(7, first.index))
    assert second.reused_bytes >= 40_000
    assert all_bytes(store, second.index)["frozen"] == bytes_of("frozen", 40_000)


def test_a_save_of_which_all_changed_is_a_whole_image_again_though_its_header_is_the_same(arena, store):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    again = fill(arena, LEAVES, content=lambda name, length: bytes_of(name, length, 1))
    second = write_shard(store, NEXT, 0, again, SMALL, Previous(7, first.index))
    assert (second.reused_bytes, second.bases) == (0, ())
    assert len(safetensors.deserialize(store.read(image_key(NEXT, 0), 2**20))) == len(LEAVES)


def test_too_little_to_reuse_is_written_again(arena, store):
    leaves = [whole("frozen", 1000), *(whole(f"trained{n}", 1100) for n in range(30))]
    first = write_shard(store, ATTEMPT, 0, fill(arena, leaves), SMALL)
    again = fill(arena, leaves, content=lambda name, length: bytes_of(name, length, name != "frozen"))
    second = write_shard(store, NEXT, 0, again, SMALL, Previous(7, first.index))
    assert (second.reused_bytes, second.bases) == (0, ())


def test_so_many_generations_later_all_is_written_again(arena, store):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    options = replace(SMALL, full_every=3)
    second = write_shard(store, NEXT, 0, fill(arena, LEAVES), options, Previous(7, first.index, depth=2))
    third = write_shard(store, THIRD, 0, fill(arena, LEAVES), options, Previous(8, second.index, depth=3))
    assert second.reused_bytes > 0
    assert (third.reused_bytes, third.bases) == (0, ())


@pytest.mark.parametrize("options", [replace(SMALL, incremental=False), replace(SMALL, xxh3=False)])
def test_without_incremental_or_without_the_fast_digest_every_save_is_whole(arena, store, options):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    second = write_shard(store, NEXT, 0, fill(arena, LEAVES), options, Previous(7, first.index))
    assert (second.reused_bytes, second.bases) == (0, ())


def test_an_extent_whose_fast_digest_agrees_and_blake3_does_not_is_written_again(arena, store):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL).index
    lying = replace(first, extents=tuple(replace(extent, blake3="0" * 64) for extent in first.extents))
    second = write_shard(store, NEXT, 0, fill(arena, LEAVES), SMALL, Previous(7, lying))
    assert (second.reused_bytes, second.bases) == (0, ())


def test_what_a_generation_without_blake3_had_is_reused_and_gets_it(arena, store):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), replace(SMALL, blake3=False)).index
    assert not any(extent.blake3 for extent in first.extents)
    second = write_shard(store, NEXT, 0, fill(arena, LEAVES), SMALL, Previous(7, first))
    assert second.reused_bytes == second.index.image_bytes
    assert all(extent.blake3 for extent in second.index.extents)
    verify_shard(store, second.index)


def test_compressed_extents_read_back_and_are_declared(arena, store):
    ramp = lambda name, length: (name[0].encode() + b"\0\x3f\x80") * (length // 4)  # noqa: E731
    written = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES, content=ramp), replace(SMALL, codec="zstd"))
    assert {extent.codec for extent in written.index.extents} >= {"zstd4"}
    assert written.written_bytes < written.index.image_bytes / 10
    assert image_key(ATTEMPT, 0) not in [item.key for item in store.list("")]
    assert all_bytes(store, written.index)["adapter"] == ramp("adapter", 4000)
    verify_shard(store, written.index)


def test_a_compressed_save_holds_a_bounded_part_of_the_image_in_memory(arena, store):
    large = [whole(f"w{n}", BATCH_BYTES // 8) for n in range(5)]
    written = write_shard(
        store, ATTEMPT, 0, fill(arena, large, content=lambda _, length: bytes(length)), Options(codec="zstd")
    )
    objects = {extent.object for extent in written.index.extents}
    assert len(objects) > 2
    for key in objects:
        assert sum(extent.length for extent in written.index.extents if extent.object == key) <= BATCH_BYTES


def test_an_image_that_was_replaced_while_it_was_written_fails_the_save(arena):
    class Slow(MemoryStore):
        def write(self, key, parts, on_piece=None):
            length = super().write(key, parts, on_piece)
            fill(arena, LEAVES, step=4)
            return length

    with pytest.raises(SaveFailed, match="replaced"):
        write_shard(Slow(), ATTEMPT, 0, fill(arena, LEAVES), SMALL)


def test_memory_that_changed_after_it_was_sealed_fails_the_save(arena, store):
    filled = fill(arena, LEAVES)
    arena.seal(seal_index(filled, ATTEMPT, 0, SMALL))
    sealed = arena.filled()
    sealed.image[9000] ^= 16
    with pytest.raises(SaveFailed, match=r"memory of this node: bytes .* changed after they were sealed"):
        write_shard(store, ATTEMPT, 0, sealed, SMALL)


def test_a_sealed_image_decides_by_its_seal_and_gives_the_same_index(arena, store):
    first = write_shard(store, ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    arena.seal(seal_index(arena.filled(), NEXT, 0, SMALL))
    second = write_shard(store, NEXT, 0, arena.filled(), SMALL, Previous(7, first.index))
    assert second.reused_bytes == second.index.image_bytes


def test_a_store_that_fails_leaves_no_thread_and_says_why(arena):
    with pytest.raises(StoreProblem):
        write_shard(MemoryStore(limit_bytes=100), ATTEMPT, 0, fill(arena, LEAVES), SMALL)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("closeranks-digest")]


def test_progress_of_each_stage_ends_at_its_total(arena, store):
    told = {}
    write_shard(
        store,
        ATTEMPT,
        0,
        fill(arena, LEAVES),
        SMALL,
        progress=lambda stage, done, total: told.setdefault(stage, []).append((done, total)),
    )
    assert sorted(told) == ["digest", "write"]
    for steps in told.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"xxh3": False, "blake3": False}, "neither"),
        ({"codec": "lz4"}, "lz4"),
        ({"full_every": 0}, "at least 1"),
        ({"threads": 0}, "at least 1"),
        ({"chunk_bytes": 100}, "chunk_bytes: expected 4096 to"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        Options(**wrong)


def test_a_state_without_any_tensor_is_saved_too(arena, store):
    written = write_shard(store, ATTEMPT, 0, fill(arena, [], shared={"step": 1}), SMALL)
    assert written.index.shared == {"step": 1}
    verify_shard(store, written.index)
