import itertools

import pytest
from tests.checkpoint.hooked_store import HookedStore
from tests.checkpoint.images import fill, whole

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Manifest
from closeranks.checkpoint.gather import publish_index
from closeranks.checkpoint.history import Verification
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.problems import NothingToRestore, StoreProblem
from closeranks.checkpoint.restore_drill import drill
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.writing import Options, write_shard


class Stand:
    """A store with two generations of two writers each."""

    def __init__(self):
        self.memory = MemoryStore()
        self.store = HookedStore(self.memory)
        self.log = CommitLog(self.store, wait=lambda _: None)
        self.term = self.log.claim("test")
        self.generations = [self.commit(step) for step in (1, 2)]

    def commit(self, step):
        attempt = attempt_name(self.term, step, f"{step:08x}")
        refs = []
        for writer in range(2):
            arena = Arena.create("test")
            filled = fill(arena, [whole(f"w{writer}", 1000)], step=step)
            refs.append(publish_index(self.memory, write_shard(self.memory, attempt, writer, filled, Options()).index))
        manifest = Manifest(attempt=attempt, step=step, world=2, layout="replicated", shards=tuple(refs))
        return self.log.commit(self.term, manifest)

    def spoil(self, generation, writer):
        attempt = self.log.history.generations[generation].manifest.attempt
        key = f"data/{attempt}/w{writer:05d}.safetensors"
        data = bytearray(self.memory.read(key, 10**6))
        data[-1] ^= 1
        self.memory.delete([key])
        self.memory.create(key, bytes(data))
        return key

    def verified(self, generation):
        return self.log.refresh().generations[generation].verified


def test_the_newest_generation_is_read_in_full_and_recorded_as_held():
    stand, progress = Stand(), []
    found = drill(stand.store, stand.log, progress=lambda done, total: progress.append((done, total)))
    assert (found.generation, found.held, found.recorded) == (stand.generations[1], True, True)
    assert [stand.verified(one) for one in stand.generations] == [Verification.UNKNOWN, Verification.HELD]
    assert progress[-1][0] == progress[-1][1] > 8000
    assert all(before[0] <= after[0] for before, after in itertools.pairwise(progress))


def test_any_generation_that_is_alive_can_be_asked_for():
    stand = Stand()
    assert drill(stand.store, stand.log, stand.generations[0]).generation == stand.generations[0]
    assert stand.verified(stand.generations[0]) is Verification.HELD


@pytest.mark.parametrize("writer", [0, 1])
def test_one_flipped_bit_is_recorded_as_broken_with_its_place(writer):
    stand = Stand()
    key = stand.spoil(stand.generations[1], writer)
    found = drill(stand.store, stand.log)
    assert (found.held, found.recorded) == (False, True)
    assert key in found.detail
    assert stand.verified(stand.generations[1]) is Verification.BROKEN
    assert stand.log.history.newest().number == stand.generations[0]


def test_a_store_that_does_not_answer_says_nothing_about_the_generation():
    stand = Stand()

    def silent(method, _key):
        if method == "read_into":
            raise StoreProblem("the network is down", transient=True)

    stand.store.before = silent
    found = drill(stand.store, stand.log)
    assert (found.held, found.recorded) == (False, False)
    assert "not known" in found.detail
    assert "network is down" in found.detail
    assert stand.verified(stand.generations[1]) is Verification.UNKNOWN


def test_a_generation_that_was_retired_while_it_was_read_is_not_called_broken():
    stand = Stand()
    old = stand.generations[0]
    key = stand.spoil(old, 0)

    def retire(method, asked):
        if method == "read_into" and asked == key:
            CommitLog(stand.memory).retire(stand.term, [old])

    stand.store.before = retire
    found = drill(stand.store, stand.log, old)
    assert (found.held, found.recorded) == (False, False)
    assert "retired" in found.detail


def test_bytes_that_are_sound_and_of_no_use_are_broken():
    stand, seen = Stand(), []

    def use(_store, generation, indices):
        seen.append((generation.number, [index.writer for index in indices]))
        return "the loss of one step was 3.1, expected 2.9"

    found = drill(stand.store, stand.log, use=use)
    assert seen == [(stand.generations[1], [0, 1])]
    assert (found.held, found.detail) == (False, "the loss of one step was 3.1, expected 2.9")
    assert stand.verified(stand.generations[1]) is Verification.BROKEN


def test_an_empty_store_has_nothing_to_drill():
    store = MemoryStore()
    with pytest.raises(NothingToRestore, match="no generation"):
        drill(store, CommitLog(store))


def test_a_generation_that_is_not_there_is_refused_with_those_that_are():
    stand = Stand()
    with pytest.raises(NothingToRestore, match=f"{stand.generations[0]}, {stand.generations[1]}"):
        drill(stand.store, stand.log, 99)
