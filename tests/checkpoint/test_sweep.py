"""What a sweep takes and leaves, on a store with real shards. Random orders are in test_history_properties.py."""

import pytest
from tests.checkpoint.hooked_store import HookedStore

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.drills.toy import Patience, commit, contribute, first_part, marks
from closeranks.checkpoint.format import Retire
from closeranks.checkpoint.gather import publish_failure
from closeranks.checkpoint.keys import attempt_of
from closeranks.checkpoint.problems import Fenced, StoreProblem
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.sweep import sweep


@pytest.fixture
def store():
    return HookedStore(MemoryStore())


@pytest.fixture
def log(store):
    return CommitLog(store, wait=lambda _: None)


@pytest.fixture
def arena():
    arena = Arena.create("test")
    yield arena
    arena.close()


@pytest.fixture
def save(store, log, arena):
    def save(term, mark, *, base=0, publish=True):
        part = first_part(term, mark, mark, 1, base)
        contribute(store, part, log.refresh(), arena)
        return commit(store, log, part, Patience(0.0, lambda: 0.0, lambda _: None), mark) if publish else part.attempt

    return save


def data(store):
    return [listed.key for listed in store.inner.list("data/")]


def test_a_retired_generation_is_freed_and_the_rest_is_not(store, log, save):
    term = log.claim("a")
    generations = [save(term, mark) for mark in range(3)]
    before = {listed.key: listed.length for listed in store.inner.list("data/")}
    log.retire(term, generations[:1])
    swept = sweep(store, log, term=term)
    assert {attempt_of(key) for key in swept.keys} == {f"t00000001-s{0:012d}-{0:08x}"}
    assert swept.freed_bytes == sum(before[key] for key in swept.keys)
    assert sorted(data(store)) == sorted(set(before) - set(swept.keys))
    assert set(marks(store, log.history)) == set(generations[1:])


def test_objects_that_a_living_generation_refers_to_outlive_their_own(store, log, save):
    term = log.claim("a")
    first = save(term, 0)
    second = save(term, 1, base=first)
    third = save(term, 2, base=second)
    log.retire(term, (first, second))
    assert list(log.refresh().generations) == [third] and log.history.generations[third].manifest.bases == (second,)
    sweep(store, log, term=term)
    assert marks(store, log.history) == {third: 2}
    save(term, 3)
    log.retire(term, (third,))
    sweep(store, log, term=term)
    assert len({attempt_of(key) for key in data(store)}) == 1, "nobody refers to the first one's objects any more"


def test_an_attempt_that_may_still_be_committed_is_left_alone_until_its_term_is_over(store, log, save):
    term = log.claim("a")
    attempt = save(term, 0, publish=False)
    assert sweep(store, log).keys == () and data(store)
    CommitLog(store).claim("b")
    assert {attempt_of(key) for key in sweep(store, log).keys} == {attempt} and not data(store)


def test_the_holder_of_the_term_may_give_an_attempt_up(store, log, save):
    term = log.claim("a")
    given_up, other = save(term, 0, publish=False), save(term, 1, publish=False)
    publish_failure(store, given_up, 1, "no space")
    sweep(store, log, term=term, given_up={given_up})
    assert {attempt_of(key) for key in data(store)} == {other}


def test_an_attempt_that_was_given_up_and_committed_all_the_same_is_not_swept(store, log, save):
    # Its commit was thought to have failed, and arrived late: before the first deletion that is settled.
    term = log.claim("a")
    part = first_part(term, 0, 0, 1)
    attempt = save(term, 0, publish=False)

    def arrive(method, key):
        if method == "create" and key.startswith("log/"):
            store.before = lambda *_: None
            commit(store, CommitLog(store), part, Patience(0.0, lambda: 0.0, lambda _: None), 0)

    store.before = arrive
    assert sweep(store, log, term=term, given_up={attempt}).keys == ()
    assert list(marks(store, log.refresh()).values()) == [0]


def test_a_lead_whose_term_is_over_sweeps_nothing_and_writes_nothing(store, log, save):
    term = log.claim("a")
    save(term, 0, publish=False)
    CommitLog(store).claim("b")
    with pytest.raises(Fenced):
        sweep(store, log, term=term)
    assert data(store) and len(list(store.inner.list("log/"))) == 2


def test_a_dry_run_says_what_would_go_and_writes_nothing(store, log, save):
    term = log.claim("a")
    save(term, 0, publish=False)
    CommitLog(store).claim("b")
    before = [listed.key for listed in store.inner.list("")]
    assert len(sweep(store, log, dry_run=True).keys) == 2
    assert [listed.key for listed in store.inner.list("")] == before


def test_a_sweep_of_nothing_writes_nothing(store, log, save):
    save(log.claim("a"), 0)
    before = [listed.key for listed in store.inner.list("")]
    assert sweep(store, log).keys == ()
    assert [listed.key for listed in store.inner.list("")] == before


def test_when_an_index_cannot_be_read_what_it_may_refer_to_stays_and_the_person_is_told(store, log, save):
    term = log.claim("a")
    first = save(term, 0)
    second = save(term, 1, base=first)
    log.retire(term, (first,))
    lost = save(term, 2, publish=False)
    store.inner.delete([log.refresh().generations[second].manifest.shards[0].object])
    term = log.claim("b")
    swept = sweep(store, log, term=term)
    assert {attempt_of(key) for key in swept.keys} == {lost}
    assert "objects of retired generations are kept" in swept.notes[0]


def test_a_sweep_that_was_cut_off_is_finished_by_the_next(store, log, save):
    term = log.claim("a")
    generations = [save(term, mark) for mark in range(3)]
    log.retire(term, generations[:2])

    def cut_off(method, _):
        if method == "delete":
            raise StoreProblem("gone away")

    store.after = cut_off
    with pytest.raises(StoreProblem):
        sweep(store, log)
    store.after = lambda *_: None
    assert sweep(store, log).keys
    assert {attempt_of(key) for key in data(store)} == {log.history.newest().manifest.attempt}


def test_foreign_objects_are_none_of_its_business(store, log, save):
    term = log.claim("a")
    store.create("data/notes/readme.txt", b"mine")
    log.claim("b")
    sweep(store, log)
    assert data(store) == ["data/notes/readme.txt"] and term == 1


def test_progress_is_told_in_bytes(store, log, save):
    term = log.claim("a")
    for mark in range(3):
        save(term, mark)
    log.append(term, Retire(generations=(2, 3)))
    heard = []
    swept = sweep(store, log, progress=lambda *what: heard.append(what))
    assert heard == [("sweep", swept.freed_bytes, swept.freed_bytes)]
