"""A transient problem is tried again, a doubtful one is read back, any other is told at once."""

import errno

import pytest

from closeranks.checkpoint.drill_files import FailingFiles, Fault
from closeranks.checkpoint.problems import StoreProblem
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.stores.retry import BACKOFF, TRIES, created, retried, retrying_until

TRANSIENT = {"transient": True}
DOUBTFUL = {"transient": True, "doubtful": True}


def failing(times, result=7, **kind):
    left = [times]

    def do():
        if left[0]:
            left[0] -= 1
            raise StoreProblem(f"try {times - left[0]}", **kind)
        return result

    return do


class Troubled(MemoryStore):
    """The next creates are answered by problems; ``done`` says whether each was carried out."""

    def __init__(self, *troubles):
        super().__init__()
        self.troubles = list(troubles)
        self.creates = 0

    def create(self, key, data):
        self.creates += 1
        if not self.troubles:
            return super().create(key, data)
        done, kind = self.troubles.pop(0)
        if done:
            super().create(key, data)
        raise StoreProblem("no answer", **kind)


@pytest.mark.parametrize("times", [0, 1, TRIES - 1])
def test_a_transient_problem_is_tried_again(no_sleep, times):
    assert retried(failing(times, **TRANSIENT), sleep=no_sleep) == 7
    assert len(no_sleep) == times


def test_nothing_is_tried_again_past_the_deadline_of_who_asked(no_sleep):
    with retrying_until(0.0), pytest.raises(StoreProblem, match="try 1"):
        retried(failing(1, **TRANSIENT), sleep=no_sleep)
    assert no_sleep == []
    assert retried(failing(1, **TRANSIENT), sleep=no_sleep) == 7, "outside it does not hold"


def test_the_waits_are_drawn_from_nothing_to_a_bound_that_doubles(no_sleep):
    for _ in range(20):
        retried(failing(TRIES - 1, **TRANSIENT), sleep=no_sleep)
    for round_ in range(TRIES - 1):
        waits = no_sleep[round_ :: TRIES - 1]
        assert all(0.0 <= wait_s <= BACKOFF.first_s * 2**round_ for wait_s in waits)
        assert len(set(waits)) > 10


def test_a_problem_that_stays_is_told_in_the_end(no_sleep):
    with pytest.raises(StoreProblem, match=f"try {TRIES}"):
        retried(failing(TRIES, **TRANSIENT), sleep=no_sleep)


@pytest.mark.parametrize("kind", [{}, DOUBTFUL])
def test_other_problems_are_told_at_once(no_sleep, kind):
    with pytest.raises(StoreProblem, match="try 1"):
        retried(failing(1, **kind), sleep=no_sleep)
    assert no_sleep == []


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("kind", [TRANSIENT, DOUBTFUL, {"doubtful": True}])
def test_an_object_is_ours_whether_or_not_the_lost_request_was_carried_out(no_sleep, done, kind):
    store = Troubled((done, kind), (done, kind))
    assert created(store, "log/1", b"nonce", sleep=no_sleep)
    assert store.read("log/1", 10) == b"nonce"


def test_an_object_of_another_is_not_ours_after_any_doubt(no_sleep):
    for theirs in (b"other", b"a longer one of another"):
        store = Troubled((False, DOUBTFUL))
        MemoryStore.create(store, "log/1", theirs)
        assert not created(store, "log/1", b"nonce", sleep=no_sleep)
        assert store.read("log/1", 100) == theirs


def test_a_doubt_that_was_never_settled_is_told(no_sleep):
    store = Troubled((False, DOUBTFUL), *[(False, TRANSIENT)] * TRIES)
    with pytest.raises(StoreProblem) as caught:
        created(store, "log/1", b"nonce", sleep=no_sleep)
    assert caught.value.doubtful
    assert store.creates == TRIES


def test_a_create_that_cannot_succeed_is_tried_once(no_sleep):
    store = Troubled((False, {}))
    with pytest.raises(StoreProblem):
        created(store, "log/1", b"nonce", sleep=no_sleep)
    assert store.creates == 1


def test_one_error_of_the_disk_does_not_fail_a_save(tmp_path, no_sleep):
    files = FailingFiles([Fault(errno=errno.EIO, call="fsync", below="data/a"), Fault(errno=errno.EIO, call="link")])
    store = DirectoryStore(tmp_path / "store", files)
    assert retried(lambda: store.write("data/a/x", [memoryview(b"0123")]), sleep=no_sleep) == 4
    assert created(store, "log/1", b"nonce", sleep=no_sleep)
    assert (store.read("data/a/x", 10), store.read("log/1", 10)) == (b"0123", b"nonce")
    assert len(no_sleep) == 2
