import numpy as np
import pytest
from tests.checkpoint.stored import COLUMNS, NAMES, ROWS, Stored, put, value

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.digests import begun
from closeranks.checkpoint.format import Verified
from closeranks.checkpoint.image import image_key, index_key
from closeranks.checkpoint.inventory import Home, open_point, take_stock
from closeranks.checkpoint.problems import Mismatch, NothingToRestore, StoreProblem
from closeranks.checkpoint.reading import Checks
from closeranks.checkpoint.restore_plan import Need, Rules
from closeranks.checkpoint.restoring import restore
from closeranks.checkpoint.stores.memory import MemoryStore

KINDS = {"xxh3", "blake3"}


def whole_need(name):
    return Need(reader=0, name=name, dtype="F32", global_shape=(ROWS, COLUMNS), offsets=(0, 0), shape=(ROWS, COLUMNS))


class Reader:
    """Reads boxes of tensors into scratch, and compares them with what was saved."""

    def __init__(self, needs=None):
        scalar = Need(reader=0, name="step", dtype="I64", global_shape=(), offsets=(), shape=())
        self.needs = [*map(whole_need, NAMES), scalar] if needs is None else needs
        self.seen = []

    def __call__(self, point, _):
        self.seen.append(point.step)
        self.targets = [memoryview(bytearray(b"\xff" * self.size(need))) for need in self.needs]
        return self.needs, self.targets

    def size(self, need):
        return int(np.prod(need.shape)) * (8 if need.dtype == "I64" else 4)

    def require(self, step):
        for need, target in zip(self.needs, self.targets, strict=True):
            area = tuple(slice(o, o + n) for o, n in zip(need.offsets, need.shape, strict=True))
            expected = value(need.name, step)[area]
            got = np.frombuffer(target, expected.dtype).reshape(need.shape)
            np.testing.assert_array_equal(got, expected)


class Dead(MemoryStore):
    def list(self, *_):
        raise StoreProblem("peer 10.0.0.7: connection refused")


def homes(durable, *near, world=2):
    """Memory homes first."""
    found = [Home(f"memory {k}", k, store, world=world) for k, store in enumerate(near)]
    return [*found, Home("store", 9, durable.store, log=durable.log)]


def test_the_newest_generation_is_restored_bit_for_bit_with_the_small_state_of_every_writer():
    durable = Stored()
    durable.save(10)
    durable.save(20)
    reader, told = Reader(), []
    restored = restore(homes(durable), reader, progress=lambda done, total: told.append((done, total)))
    reader.require(20)
    assert restored.point.step == 20
    assert {writer: index.local for writer, index in restored.indices.items()} == {0: {"seat": 0}, 1: {"seat": 1}}
    assert restored.refused == ()
    size = 3 * ROWS * COLUMNS * 4 + 8
    assert restored.used["store"].read_bytes == size
    assert told[-1] == (size, size)


@pytest.mark.parametrize(
    ("checks", "compared"), [({}, {"blake3"}), ({"checks": Checks.FAST}, {"xxh3"}), ({"checks": Checks.ALL}, KINDS)]
)
def test_a_home_says_which_digests_are_compared_and_a_durable_one_takes_the_strong_one(monkeypatch, checks, compared):
    durable, begun_kinds = Stored(), set()
    durable.save(10)
    monkeypatch.setattr("closeranks.checkpoint.reading.begun", lambda kind: begun_kinds.add(kind) or begun(kind))
    restore([Home("store", 0, durable.store, log=durable.log, **checks)], Reader())
    assert begun_kinds == compared


def test_memory_is_read_before_the_store_and_is_newer():
    durable, memory = Stored(), MemoryStore()
    durable.save(20)
    put(memory, durable.attempt(25), 25)
    reader = Reader()
    restored = restore(homes(durable, memory), reader)
    reader.require(25)
    assert (restored.point.generation, list(restored.used)) == (None, ["memory 0"])


def test_a_damaged_copy_in_memory_is_replaced_from_the_store_shard_by_shard():
    durable, memory = Stored(), MemoryStore()
    attempt = durable.attempt(20)
    durable.save(20, attempt=attempt)
    put(memory, attempt, 20)
    data = bytearray(memory.read(image_key(attempt, 1), 2**20))
    data[-1] ^= 1
    memory.delete([image_key(attempt, 1)])
    memory.create(image_key(attempt, 1), bytes(data))
    reader = Reader()
    restored = restore(homes(durable, memory), reader)
    reader.require(20)
    assert sorted(restored.used) == ["memory 0", "store"]
    assert len(restored.refused) == 1
    assert restored.refused[0].startswith(f"memory 0: shard of writer 1: {image_key(attempt, 1)}: bytes")
    assert reader.seen == [20]


def test_a_generation_damaged_in_its_only_home_falls_back_to_the_one_before_and_says_so():
    durable = Stored()
    durable.save(10)
    attempt = durable.attempt(20)
    durable.save(20, attempt=attempt)
    durable.damage(image_key(attempt, 0))
    reader = Reader()
    restored = restore(homes(durable), reader)
    reader.require(10)
    assert any("no home has the shard of writer 0" in reason for reason in restored.refused)


@pytest.mark.parametrize("spoil", ["delete the image", "delete the index", "flip the index", "truncate the image"])
def test_whatever_befalls_the_newest_two_the_third_is_restored(spoil):
    durable = Stored()
    durable.save(10)
    for step in (20, 30):
        attempt = durable.attempt(step)
        durable.save(step, attempt=attempt)
        image, index = image_key(attempt, 1), index_key(attempt, 1)
        if spoil == "delete the image":
            durable.store.delete([image])
        elif spoil == "delete the index":
            durable.store.delete([index])
        elif spoil == "flip the index":
            durable.damage(index, 40)
        else:
            durable.replace(image, durable.store.read(image, 2**20)[:-7])
    reader = Reader()
    assert restore(homes(durable), reader).point.step == 10
    reader.require(10)


def test_no_usable_point_is_an_error_with_a_reason_for_each():
    durable = Stored()
    attempt = durable.attempt(20)
    durable.save(20, attempt=attempt)
    durable.store.delete([image_key(attempt, 0)])
    durable.save(30, manifest={"trusted": False})
    with pytest.raises(NothingToRestore) as error:
        restore(homes(durable), Reader())
    message = str(error.value)
    assert "step 30 (generation 3): it is not trusted" in message
    assert "step 20 (generation 2): no home has the shard of writer 0 (of 2)" in message
    assert image_key(attempt, 0) in message


def test_an_empty_store_says_that_nothing_was_saved_yet():
    with pytest.raises(NothingToRestore, match=r"store: expected a checkpoint .* no checkpoint has been made yet"):
        restore(homes(Stored()), Reader())


def test_a_home_that_does_not_answer_is_noted_and_the_others_are_used():
    durable = Stored()
    durable.save(20)
    restored = restore(homes(durable, Dead()), Reader())
    assert restored.point.step == 20
    assert restored.refused == ("memory 0: peer 10.0.0.7: connection refused",)


def test_a_log_that_cannot_be_read_does_not_hide_what_memory_has():
    durable, memory = Stored(), MemoryStore()
    durable.save(20)
    put(memory, durable.attempt(25), 25)
    durable.damage("log/0000000002.json", 10)
    fresh = [Home("memory", 0, memory, world=2), Home("store", 1, durable.store, log=CommitLog(durable.store))]
    restored = restore(fresh, Reader())
    assert restored.point.step == 25
    assert "log/0000000002.json" in restored.refused[0]


def test_a_snapshot_in_memory_that_lacks_a_writer_is_passed_over():
    durable, memory = Stored(), MemoryStore()
    durable.save(20)
    attempt = durable.attempt(25)
    put(memory, attempt, 25)
    memory.delete([image_key(attempt, 1), index_key(attempt, 1)])
    restored = restore(homes(durable, memory), Reader())
    assert restored.point.step == 20
    assert "step 25 (in memory only): no home has the shard of writer 1 (of 2)" in restored.refused


def test_an_uncommitted_attempt_of_unknown_size_is_not_guessed_at():
    durable, memory = Stored(), MemoryStore()
    durable.save(20)
    put(memory, durable.attempt(25), 25)
    restored = restore(homes(durable, memory, world=None), Reader())
    assert restored.point.step == 20
    assert "was never committed, and nothing says how many wrote it" in restored.refused[0]


@pytest.mark.parametrize(("writers", "readers"), [(4, 2), (2, 3), (3, 1), (1, 4)])
@pytest.mark.parametrize("axis", [0, 1])
def test_any_number_of_readers_reads_what_any_number_of_writers_wrote(writers, readers, axis):
    durable = Stored()
    durable.save(20, world=writers)
    total = (ROWS, COLUMNS)[axis]
    for reader in range(readers):
        start, end = total * reader // readers, total * (reader + 1) // readers
        offsets = (start, 0) if axis == 0 else (0, start)
        shape = (end - start, COLUMNS) if axis == 0 else (ROWS, end - start)
        needs = [
            Need(reader=reader, name=name, dtype="F32", global_shape=(ROWS, COLUMNS), offsets=offsets, shape=shape)
            for name in NAMES
        ]
        part = Reader(needs)
        restored = restore(homes(durable), part)
        part.require(20)
        assert restored.used["store"].read_bytes == sum(map(part.size, needs))


def test_equal_needs_are_read_once_and_filled_all():
    durable = Stored()
    durable.save(20)
    reader = Reader([whole_need("model/weight"), whole_need("model/weight")])
    restored = restore(homes(durable), reader)
    reader.require(20)
    assert restored.used["store"].read_bytes == reader.size(reader.needs[0])


def test_a_reader_that_finds_another_model_is_heard_and_no_older_point_is_tried():
    durable = Stored()
    durable.save(10)
    durable.save(20)
    seen = []

    def refuse(point, _):
        seen.append(point.step)
        raise Mismatch("another model")

    with pytest.raises(Mismatch):
        restore(homes(durable), refuse)
    assert seen == [20]


def test_rules_choose_the_last_verified_or_an_older_step():
    durable = Stored()
    durable.save(10)
    second = durable.save(20)
    durable.save(30)
    durable.log.append_as_visitor(Verified(generation=second, held=True))
    assert restore(homes(durable), Reader(), Rules(verified=True)).point.step == 20
    assert restore(homes(durable), Reader(), Rules(newest_step=19)).point.step == 10


def test_a_generation_that_a_drill_found_broken_is_not_trusted():
    durable = Stored()
    durable.save(10)
    durable.log.append_as_visitor(Verified(generation=durable.save(20), held=False, detail="loss differs"))
    assert restore(homes(durable), Reader()).point.step == 10


def test_a_transient_problem_of_a_home_is_no_reason_to_leave_it():
    class Once(MemoryStore):
        failures = 1

        def read_into(self, key, begin, target):
            if key.endswith("safetensors") and self.failures:
                self.failures -= 1
                raise StoreProblem("slow down", transient=True)
            super().read_into(key, begin, target)

    durable = Stored(Once())
    durable.save(20)
    assert restore(homes(durable), Reader()).refused == ()


def test_indices_are_read_only_for_the_points_that_are_tried():
    durable = Stored()
    for step in (10, 20, 30):
        durable.save(step)
    read = []
    inner = durable.store.read
    durable.store.read = lambda key, limit: read.append(key) or inner(key, limit)
    stock = take_stock(homes(durable))
    assert not [key for key in read if "data/" in key]
    assert open_point(stock.found[0], homes(durable)).point.step == 30
    assert len([key for key in read if "data/" in key]) == 2
