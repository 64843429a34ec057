import os
import struct

import msgspec
import pytest
from tests.checkpoint.images import ATTEMPT, bytes_of, fill, whole

from closeranks.checkpoint.arena import Arena, ArenaStore, Meta
from closeranks.checkpoint.image import image_key, index_key, lay_out
from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.reading import Region, fetch
from closeranks.checkpoint.shard_index import decode_index
from closeranks.checkpoint.writing import Options, seal_index

LEAVES = [whole("model/w", 30, 7), whole("model/b", 7, dtype="BF16"), whole("step", dtype="I64")]


@pytest.fixture
def arena():
    made = Arena.create("test")
    yield made
    made.close()


def seal(arena):
    index = seal_index(arena.filled(), ATTEMPT, 0, Options(chunk_bytes=4096))
    arena.seal(index)
    return index


def test_another_process_reads_through_the_descriptor_what_was_filled(arena):
    other = Arena.of(os.dup(arena.fd))
    assert other.filled() is None
    fill(arena, LEAVES, step=41, shared={"lr": 0.1})
    filled = other.filled()
    assert (filled.step, filled.shared, filled.local, filled.index) == (41, {"lr": 0.1}, {"writer": 0}, None)
    part = filled.slices[0]
    assert bytes(filled.image[part.at : part.at + part.length]) == bytes_of("model/w", part.length)
    other.close()


def test_an_arena_that_is_being_filled_or_was_torn_gives_nothing(arena):
    fill(arena, LEAVES, step=1)
    arena.open_image(2, lay_out(LEAVES))
    assert arena.filled() is None
    assert Arena.of(os.dup(arena.fd)).filled() is None


def test_an_image_that_was_replaced_knows_it(arena):
    first = fill(arena, LEAVES, step=1)
    assert first.still()
    second = fill(arena, LEAVES, step=1)
    assert not first.still()
    assert second.still()


def test_the_seal_of_an_earlier_image_is_not_taken_for_the_new_ones(arena):
    fill(arena, LEAVES, step=1)
    index = seal(arena)
    assert arena.filled().index == index
    assert fill(arena, LEAVES, step=2).index is None


def test_only_the_step_that_was_opened_can_be_finished(arena):
    layout = lay_out(LEAVES)
    arena.open_image(5, layout)
    with pytest.raises(ValueError, match="expected the image of step 5"):
        arena.finish(6, Meta(slices=layout.slices))
    arena.finish(5, Meta(slices=layout.slices))
    with pytest.raises(ValueError, match="finished"):
        arena.finish(5, Meta(slices=layout.slices))


def test_a_torn_arena_cannot_be_sealed(arena):
    fill(arena, LEAVES, step=1)
    index = seal(arena)
    arena.open_image(2, lay_out(LEAVES))
    with pytest.raises(ValueError, match="only a complete image"):
        arena.seal(index)


def test_memory_is_kept_from_one_image_to_the_next_and_grows_only_for_a_larger_one(arena):
    large = [whole("w", 2**14)]
    fill(arena, large)
    size = os.fstat(arena.fd).st_size
    for step in range(50):
        fill(arena, LEAVES if step % 2 else large, step=step)
        seal(arena)
    assert os.fstat(arena.fd).st_size == size
    fill(arena, [whole("w", 4 * 2**20)], content=lambda _, length: bytes(length))
    assert os.fstat(arena.fd).st_size > size


def test_memory_that_was_reserved_is_there_before_the_first_image(arena):
    arena.reserve(2**20)
    blocks = os.fstat(arena.fd).st_blocks
    assert blocks * 512 >= 2**20
    fill(arena, [whole("w", 2**12)])
    assert os.fstat(arena.fd).st_blocks == blocks


def test_memory_that_nobody_has_is_a_problem_with_words(arena):
    with pytest.raises(StoreProblem, match=r"expected .* bytes of free memory"):
        arena.reserve(2**62)


@pytest.mark.parametrize("at", [0, 8, 64, 72, 80, 88, 96, 104, 112, 256, 264, 272, 280, 288])
@pytest.mark.parametrize("value", [0, 1, 2**40, 2**64 - 1])
def test_an_arena_whose_control_numbers_lie_is_never_believed(arena, at, value):
    filled = fill(arena, LEAVES, step=7, shared=[1, 2])
    index = seal(arena)
    expected = (bytes(filled.image), filled.slices, filled.shared, index)
    before = os.pread(arena.fd, 8, at)
    os.pwrite(arena.fd, struct.pack("<Q", value), at)
    try:
        found = arena.filled()
    except Damaged:
        return
    if found is not None and os.pread(arena.fd, 8, at) != before:
        got = (bytes(found.image), found.slices, found.shared, index)
        assert got == expected
        assert found.step == 7
        assert found.index in (None, index)


def test_memory_without_a_byte_becomes_an_empty_arena():
    assert Arena.of(os.memfd_create("new")).filled() is None


def test_garbage_is_no_arena():
    fd = os.memfd_create("garbage")
    os.ftruncate(fd, 1)
    with pytest.raises(Damaged, match="at least"):
        Arena.of(fd).filled()
    os.ftruncate(fd, 4 * 2**20)
    with pytest.raises(Damaged, match="expected it to begin with"):
        Arena.of(fd).filled()


def test_sealed_arenas_are_a_home_under_the_usual_keys(arena):
    store = ArenaStore([arena, Arena.create("empty")])
    fill(arena, LEAVES)
    assert list(store.list("data/")) == []
    index = seal(arena)
    keys = [image_key(ATTEMPT, 0), index_key(ATTEMPT, 0)]
    assert [item.key for item in store.list("")] == sorted(keys)
    assert [item.key for item in store.list("", after=keys[1])] == [keys[0]]
    assert decode_index(store.read(keys[1], 2**20), "memory") == index
    target = bytearray(7 * 2)
    fetch(store, index, [Region(1, (0,), (7,), memoryview(target))])
    assert bytes(target) == bytes_of("model/b", 14)


def test_a_home_of_arenas_gives_nothing_of_an_image_that_was_replaced(arena):
    store = ArenaStore([arena])
    fill(arena, LEAVES)
    seal(arena)
    store.read(index_key(ATTEMPT, 0), 2**20)
    fill(arena, LEAVES, step=9)
    for read in (
        lambda: store.read_into(image_key(ATTEMPT, 0), 0, memoryview(bytearray(10))),
        lambda: store.read(index_key(ATTEMPT, 0), 2**20),
    ):
        with pytest.raises(Damaged, match="no such image"):
            read()


def test_a_home_of_arenas_refuses_what_it_cannot_do(arena):
    store = ArenaStore([arena])
    fill(arena, LEAVES)
    index = seal(arena)
    with pytest.raises(StoreProblem):
        store.create("data/x", b"")
    with pytest.raises(StoreProblem):
        store.write("data/x", [])
    with pytest.raises(Damaged, match="expected"):
        store.read_into(image_key(ATTEMPT, 0), index.image_bytes - 1, memoryview(bytearray(2)))
    with pytest.raises(Damaged, match="at most 3"):
        store.read(index_key(ATTEMPT, 0), 3)
    with pytest.raises(Damaged, match="no such image"):
        store.read("data/x", 3)


def test_what_lies_beside_an_image_is_json_and_nothing_else(arena):
    filled = fill(arena, LEAVES, shared={"nested": [1, 2.5, None, {"a": "b"}]})
    assert msgspec.json.decode(msgspec.json.encode(filled.shared)) == filled.shared
