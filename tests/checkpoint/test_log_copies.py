"""The second copy of every log entry: when it is made, when it is believed, and when not."""

import shutil
from pathlib import Path

import pytest
from tests.checkpoint.hooked_store import HookedStore
from tests.checkpoint.logs import manifest

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.drills.subject import JOB, restore
from closeranks.checkpoint.entries import decode_entry, encode_entry
from closeranks.checkpoint.format import Claim, Entry, Pin
from closeranks.checkpoint.keys import copy_key, entry_key
from closeranks.checkpoint.log_copies import examine_log
from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.stores.opening import found

LIMIT = 1 << 20
GOLDEN = Path(__file__).parent / "golden" / "format1"


@pytest.fixture
def store():
    return HookedStore(MemoryStore())


def log_on(store):
    return CommitLog(store, clock=lambda: 1000.0, wait=lambda _: None)


@pytest.fixture
def log(store):
    """With a claim and three commits: entries 1 to 4, and copies of 1 to 3."""
    log = log_on(store)
    term = log.claim("a")
    for step in range(3):
        log.commit(term, manifest(term, step))
    return log


def copies(store):
    return [int(one.key[-15:-5]) for one in store.list("log-copy/")]


def put(store, key, data):
    store.inner.delete([key])
    if data is not None:
        store.inner.create(key, data)


def flipped(store, key):
    data = bytearray(store.inner.read(key, LIMIT))
    data[len(data) // 3] ^= 1
    return bytes(data)


def test_every_entry_but_the_newest_has_a_copy_with_the_same_bytes(store, log):
    assert copies(store) == [1, 2, 3]
    for number in (1, 2, 3):
        assert store.read(copy_key(number), LIMIT) == store.read(entry_key(number), LIMIT)


@pytest.mark.parametrize("harm", [flipped, lambda _store, _key: None, lambda _store, _key: b""])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_damaged_or_missing_entry_is_read_from_its_copy_and_the_store_goes_on(store, log, number, harm):
    put(store, entry_key(number), harm(store, entry_key(number)))
    late = log_on(store)
    assert late.refresh() == log.history
    assert list(late.repaired) == [number]
    assert late.commit(late.claim("b"), manifest(2, 9)) == 6


def test_copies_are_not_read_while_the_entries_are_sound(store, log):
    reads = []
    store.before = lambda method, key: reads.append(key) if method == "read" else None
    log_on(store).refresh()
    assert sorted(reads) == [entry_key(number) for number in (1, 2, 3, 4)]


def test_when_both_are_damaged_the_entry_and_the_way_out_are_named(store, log):
    put(store, entry_key(2), flipped(store, entry_key(2)))
    put(store, copy_key(2), flipped(store, copy_key(2)))
    with pytest.raises(Damaged, match=r"log/0000000002\.json: entry 2 .*log-copy/0000000002\.json.* restore"):
        log_on(store).refresh()


def test_the_newest_entry_has_no_copy_and_its_damage_is_an_error(store, log):
    put(store, entry_key(4), flipped(store, entry_key(4)))
    with pytest.raises(Damaged, match="entry 4 of the log cannot be read"):
        log_on(store).refresh()


def test_the_copy_of_another_number_is_not_believed(store, log):
    put(store, entry_key(2), None)
    put(store, copy_key(2), store.read(entry_key(3), LIMIT))
    with pytest.raises(Damaged, match="expected entry 2, got entry 3"):
        log_on(store).refresh()


def test_a_copy_beyond_the_newest_entry_is_no_entry(store, log):
    forged = Entry(format=1, number=5, term=2, nonce="0" * 32, wall_s=0.0, act=Claim(owner="nobody"))
    store.create(copy_key(5), encode_entry(forged))
    late = log_on(store)
    assert late.refresh().last == 4
    assert late.claim("b") == 2


def test_a_copy_of_an_entry_that_the_store_lost_gives_way_to_that_of_the_one_that_won_the_number(store, log):
    put(store, entry_key(4), None)  # the end of the log is lost: two entries, so that the first of them had a copy
    put(store, entry_key(3), None)
    new = log_on(store)
    term = new.claim("b")
    new.commit(term, manifest(term, 9))
    assert decode_entry(store.read(copy_key(3), LIMIT), 3, "").act == Claim(owner="b")
    put(store, entry_key(3), None)
    assert log_on(store).refresh().owner == "b"


def test_an_append_costs_a_read_and_a_create_more_however_long_the_log_is(store, log):
    calls = []
    store.before = lambda method, key: calls.append((method, key))
    log.append(1, Pin(generation=2))
    assert calls == [("list", "log/")] * 2 + [
        ("create", entry_key(5)),
        ("read", entry_key(4)),
        ("create", copy_key(4)),
    ]


@pytest.mark.parametrize("kind", [{}, {"transient": True}, {"doubtful": True}])
@pytest.mark.parametrize("hook", ["before", "after"])
def test_a_copy_that_fails_neither_fails_nor_delays_the_append_and_is_made_by_the_next(store, log, hook, kind):
    failed = []

    def no_copies(method, key):
        if method == "create" and key.startswith("log-copy/"):
            failed.append(key)
            raise StoreProblem("no space left", **kind)

    setattr(store, hook, no_copies)
    assert log.append(1, Pin(generation=2)) == 5
    assert failed == [copy_key(4)]
    setattr(store, hook, lambda *_: None)
    log.append(1, Pin(generation=3))
    assert copies(store) == [1, 2, 3, 4, 5]


def test_the_next_claim_heals_what_a_crash_left_without_a_copy(store, log):
    for number in (1, 3):
        store.inner.delete([copy_key(number)])
    log_on(store).claim("b")
    assert copies(store) == [1, 2, 3, 4]


def test_a_lead_heals_what_a_visitor_left_without_a_copy(store, log):
    visitor = log_on(store)

    def cut_off(method, key):
        if method == "create" and key.startswith("log-copy/"):
            raise KeyboardInterrupt

    store.before = cut_off
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            visitor.append_as_visitor(Pin(generation=2))
    store.before = lambda *_: None
    assert copies(store) == [1, 2, 3]
    log.append(1, Pin(generation=3))
    assert copies(store) == [1, 2, 3, 4, 5, 6]


def test_a_visitor_heals_when_it_settles(store, log):
    store.inner.delete([copy_key(2)])
    log_on(store).settle()
    assert copies(store) == [1, 2, 3, 4]


def test_a_long_log_without_copies_gets_them_little_by_little(store, log):
    for _ in range(30):
        log.append(1, Pin(generation=2))
    store.inner.delete([copy_key(number) for number in range(1, 40)])
    new = log_on(store)
    new.claim("b")
    before = len(copies(store))
    assert 0 < before < 20
    for _ in range(3):
        new.append(2, Pin(generation=2))
    assert len(copies(store)) > before
    new.settle()
    assert copies(store) == list(range(1, new.history.last))


def test_the_copy_of_a_damaged_entry_is_left_as_it_is(store, log):
    truth = store.read(copy_key(2), LIMIT)
    put(store, entry_key(2), flipped(store, entry_key(2)))
    new = log_on(store)
    new.claim("b")
    new.settle()
    assert store.read(copy_key(2), LIMIT) == truth
    assert new.history.generations.keys() == log.history.generations.keys()


def test_examining_names_what_is_damaged_and_what_serves(store, log):
    assert examine_log(store, 4) == ()
    put(store, entry_key(2), flipped(store, entry_key(2)))
    put(store, copy_key(3), flipped(store, copy_key(3)))
    store.inner.delete([copy_key(1)])
    first, second = examine_log(store, 4)
    assert (first.entry, first.object, first.served_by) == (2, entry_key(2), copy_key(2))
    assert (second.entry, second.object, second.served_by) == (3, copy_key(3), entry_key(3))


def test_a_store_of_an_older_version_opens_and_gets_copies(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "store")
    old, store = DirectoryStore(GOLDEN), DirectoryStore(tmp_path / "store")
    assert not copies(store)
    assert restore(store, [store]) == restore(old, [old])
    found(store, JOB, make=False, now_wall_s=0.0)
    log = CommitLog(store)
    log.claim("b")
    assert copies(store) == list(range(1, log.history.last))
    (tmp_path / "store" / entry_key(2)).write_bytes(b"")
    assert restore(store, [store]) == restore(old, [old])
