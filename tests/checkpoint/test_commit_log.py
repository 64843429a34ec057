"""Appending under doubt, contention and fences, against a real store's protocol in memory."""

import pytest
from tests.checkpoint.hooked_store import HookedStore
from tests.checkpoint.logs import manifest

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.entries import decode_entry, encode_entry
from closeranks.checkpoint.format import Claim, Entry, Pin, Retire, Unpin, Verified
from closeranks.checkpoint.keys import copy_key, entry_key
from closeranks.checkpoint.problems import (
    BaseLost,
    Damaged,
    Fenced,
    NotAccepted,
    SaveFailed,
    StoreProblem,
    StoreRefused,
)
from closeranks.checkpoint.stores.memory import MemoryStore


@pytest.fixture
def store():
    return HookedStore(MemoryStore())


def log_on(store):
    return CommitLog(store, clock=lambda: 1000.0, wait=lambda _: None)


@pytest.fixture
def log(store):
    return log_on(store)


def keys(store):
    return [listed.key for listed in store.inner.list("log/")]


def fail_once(problem, method="create"):
    """A hook that spoils the first call of a method."""
    left = [problem]

    def hook(called, _):
        if called == method and left:
            raise left.pop()

    return hook


def test_terms_count_up_whoever_claims(store):
    assert [log_on(store).claim(owner) for owner in "abc"] == [1, 2, 3]


def test_a_generation_is_the_number_of_its_entry_and_all_logs_see_it(store, log):
    term = log.claim("a")
    assert log.commit(term, manifest(term, 5)) == 2
    assert log_on(store).refresh().newest().manifest.step == 5


def test_a_second_commit_of_an_attempt_gives_the_same_generation_and_writes_nothing(store, log):
    term = log.claim("a")
    assert log.commit(term, manifest(term, 5)) == log.commit(term, manifest(term, 5)) == 2
    assert len(keys(store)) == 2


@pytest.mark.parametrize(
    ("hook", "kind"),
    [
        ("before", {"transient": True}),
        ("before", {"doubtful": True}),
        ("after", {"doubtful": True}),
        ("before", {"doubtful": True, "transient": True}),
        ("after", {"doubtful": True, "transient": True}),
    ],
)
def test_one_spoilt_answer_does_not_lose_a_commit_nor_commit_twice(store, log, hook, kind):
    term = log.claim("a")
    setattr(store, hook, fail_once(StoreProblem("the answer was lost", **kind)))
    assert log.commit(term, manifest(term, 5)) == 2
    assert len(keys(store)) == 2 and log_on(store).refresh().newest().number == 2


def test_a_commit_that_reached_the_store_while_the_answer_was_lost_for_good_is_found_by_the_next_call(store, log):
    term = log.claim("a")

    def cut_off(method, _):
        if method in ("create", "read"):
            raise StoreProblem("no connection", doubtful=method == "create")

    store.after = cut_off
    with pytest.raises(StoreProblem):
        log.commit(term, manifest(term, 5))
    store.after = lambda *_: None
    assert log.commit(term, manifest(term, 5)) == 2 and len(keys(store)) == 2


def test_a_permanent_problem_is_not_tried_again(store, log):
    store.before = fail_once(StoreProblem("no space left"))
    with pytest.raises(StoreProblem, match="no space left"):
        log.claim("a")
    assert keys(store) == []


def test_a_writer_of_an_old_term_is_fenced_and_writes_nothing(store, log):
    old = log.claim("old")
    log.commit(old, manifest(old, 1))
    log.commit(old, manifest(old, 2))
    log_on(store).claim("new")
    before = keys(store)
    for act in (
        lambda: log.commit(old, manifest(old, 3)),
        lambda: log.retire(old, (2,)),
        lambda: log.append(old, Pin(generation=2)),
        lambda: log.settle(old),
    ):
        with pytest.raises(Fenced, match="term 1 is over, new has claimed term 2"):
            act()
    assert keys(store) == before


def test_a_claim_between_the_look_and_the_append_fences_too(store, log):
    old = log.claim("old")

    def claim_meanwhile(method, key):
        if method == "create" and key == entry_key(2):
            store.before = lambda *_: None
            log_on(store).claim("new")

    store.before = claim_meanwhile
    with pytest.raises(Fenced):
        log.commit(old, manifest(old, 1))
    assert len(keys(store)) == 2 and not log.refresh().generations


def test_a_lost_race_for_a_number_is_run_again(store, log):
    term = log.claim("a")
    log.commit(term, manifest(term, 1))

    def pin_meanwhile(method, key):
        if method == "create" and key == entry_key(3):
            store.before = lambda *_: None
            log_on(store).append_as_visitor(Pin(generation=2))

    store.before = pin_meanwhile
    assert log.commit(term, manifest(term, 2)) == 4


def test_a_base_that_is_retired_between_the_look_and_the_commit_is_lost(store, log):
    term = log.claim("a")
    log.commit(term, manifest(term, 1))
    log.commit(term, manifest(term, 2))

    def retire_meanwhile(method, key):
        if method == "create" and key == entry_key(4):
            store.before = lambda *_: None
            log_on(store).append_as_visitor(Retire(generations=(2,)))

    store.before = retire_meanwhile
    with pytest.raises(BaseLost, match="generation 2, which it builds on, was retired by entry 4"):
        log.commit(term, manifest(term, 3, bases=(2,)))
    assert list(log.refresh().generations) == [3]


def test_a_manifest_that_cannot_be_published_is_refused_before_it_takes_a_number(store, log):
    term = log.claim("a")
    with pytest.raises(SaveFailed, match="belongs to term 7"):
        log.commit(term, manifest(7, 1))
    assert len(keys(store)) == 1


def test_retire_tells_what_was_retired(log):
    term = log.claim("a")
    for step in range(4):
        log.commit(term, manifest(term, step))
    assert log.retire(term, (2, 3, 5, 99)) == (2, 3)
    assert log.retire(term, (2, 5)) == ()


def test_visitors_act_under_whatever_term_is_the_newest(store, log):
    term = log.claim("a")
    log.commit(term, manifest(term, 1))
    visitor = log_on(store)
    visitor.refresh()
    log_on(store).claim("b")
    visitor.append_as_visitor(Pin(generation=2, label="kept"))
    visitor.append_as_visitor(Verified(generation=2, held=True))
    assert log.refresh().generations[2].pinned == ("kept",) and log.history.last_verified().number == 2


@pytest.mark.parametrize("act", [Pin(generation=9), Unpin(generation=2), Retire(generations=(2,))])
def test_an_act_that_would_change_nothing_is_refused_in_words_and_not_written(store, log, act):
    term = log.claim("a")
    log.commit(term, manifest(term, 1))
    with pytest.raises(NotAccepted, match="generation"):
        log.append_as_visitor(act)
    assert len(keys(store)) == 2


def test_an_entry_that_the_listing_missed_is_read_all_the_same(store, log):
    term = log.claim("a")
    log.commit(term, manifest(term, 1))
    listed = store.inner.list
    store.inner.list = lambda prefix, after="": (one for one in listed(prefix, after) if one.key != entry_key(1))
    assert log_on(store).refresh().newest().number == 2


def test_a_gap_in_the_log_is_damage_and_names_the_entry_and_the_way_out(store, log):
    for _ in range(3):
        log.claim("a")
    store.inner.delete([entry_key(2), copy_key(2)])
    with pytest.raises(Damaged, match=r"0000000002\.json: entry 2 .* restore this object from a copy"):
        log_on(store).refresh()


def test_every_flipped_bit_of_an_entry_is_noticed():
    entry = Entry(format=1, number=1, term=1, nonce="0" * 32, wall_s=0.0, act=Claim(owner="a"))
    data = encode_entry(entry)
    assert decode_entry(data, 1, "here") == entry
    for at in range(len(data)):
        for bit in range(8):
            spoilt = bytearray(data)
            spoilt[at] ^= 1 << bit
            with pytest.raises(Damaged):
                decode_entry(bytes(spoilt), 1, "here")


def test_an_entry_under_another_number_or_cut_off_is_damage():
    data = encode_entry(Entry(format=1, number=1, term=1, nonce="0" * 32, wall_s=0.0, act=Claim(owner="a")))
    for spoilt, number in ((data, 2), (data[:-1], 1), (b"", 1), (data + b"\n", 1)):
        with pytest.raises(Damaged):
            decode_entry(spoilt, number, "here")


def test_an_entry_of_a_newer_format_is_refused_as_such():
    entry = Entry(format=2, number=1, term=1, nonce="0" * 32, wall_s=0.0, act=Claim(owner="a"))
    with pytest.raises(StoreRefused, match="format 2, expected at most 1"):
        decode_entry(encode_entry(entry), 1, "here")


def test_a_long_log_is_read_from_the_start_and_then_only_what_is_new(store, log):
    term = log.claim("a")
    for step in range(40):
        log.commit(term, manifest(term, step))
    late = log_on(store)
    assert len(late.refresh().generations) == 40
    reads = []
    store.before = lambda method, key: reads.append(key) if method == "read" else None
    log.commit(term, manifest(term, 41))
    late.refresh()
    assert reads == [entry_key(41), entry_key(42)], "the one before, for its copy, and the new one"
