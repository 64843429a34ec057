"""A summary spares reading a long log, and can never make it say something else."""

import json

import pytest
from blake3 import blake3
from tests.checkpoint.hooked_store import HookedStore
from tests.checkpoint.logs import manifest

from closeranks.checkpoint import commit_log
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Pin, Retire, Verified
from closeranks.checkpoint.keys import copy_key, entry_key
from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.stores.memory import MemoryStore

EVERY = 8
LIMIT = 1 << 20


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(commit_log, "SUMMARIZED", EVERY)
    return HookedStore(MemoryStore())


def log_on(store):
    return CommitLog(store, clock=lambda: 1000.0, wait=lambda _: None)


@pytest.fixture
def log(store):
    """Every act, two terms, void entries; 29 of them."""
    for term in (1, 2):
        log = log_on(store)
        log.claim(f"owner {term}")
        made = [log.commit(term, manifest(term, step, bases=())) for step in range(8)]
        log.append(term, Pin(generation=made[0], label="kept"))
        log.append(term, Verified(generation=made[1], held=True, detail="read"))
        log.append(term, Verified(generation=made[2], held=False, detail="broken"))
        log.append(term, Retire(generations=tuple(made[:5])))
        log.append(term, Retire(generations=()))
    log.append(2, Pin(generation=made[-1]))
    return log


def summaries(store):
    return [one.key for one in store.list("log-summary/")]


def reads(store, log):
    keys = []
    store.before = lambda method, key: keys.append(key) if method == "read" else None
    log.refresh()
    store.before = lambda *_: None
    return keys


def without_summaries(store):
    whole = MemoryStore()
    for one in store.list(""):
        if not one.key.startswith("log-summary/"):
            whole.create(one.key, store.read(one.key, LIMIT))
    return log_on(whole).refresh()


def put(store, key, data):
    store.inner.delete([key])
    store.inner.create(key, data)


def spoilt(store, key, **changes):
    """A summary that says something else and whose digest holds."""
    line, _ = store.read(key, LIMIT).splitlines()
    line = json.dumps(json.loads(line) | changes).encode()
    put(store, key, line + b"\n" + blake3(line).hexdigest().encode() + b"\n")


def test_what_is_read_from_a_summary_is_what_all_entries_say(store, log):
    late = log_on(store)
    asked = reads(store, late)
    assert late.history == without_summaries(store) == log.history
    assert len(asked) < 2 * EVERY < log.history.last
    assert late.commit(late.claim("next"), manifest(3, 50)) == log.history.last + 2


def test_the_newest_two_summaries_stay(store, log):
    assert len(summaries(store)) == 2
    assert all(0 < log.history.last - int(key[-15:-5]) < 3 * EVERY for key in summaries(store))


def test_only_a_lead_writes_summaries(store, log):
    before = summaries(store)
    visitor = log_on(store)
    for _ in range(3 * EVERY):
        visitor.settle()
    assert summaries(store) == before


def damaged(store, key):
    data = bytearray(store.read(key, LIMIT))
    data[len(data) // 2] ^= 4
    put(store, key, bytes(data))


def of_another_log(store, key):
    """Sound, but made of an entry that this log does not have."""
    spoilt(store, key, entry_blake3="0" * 64, generations=[], attempts={}, term=9)


def of_another_number(store, key):
    spoilt(store, key, number=3)


def under_another_number(store, key):
    """A sound one of this log, in the wrong place."""
    put(store, key, store.read(summaries(store)[0], LIMIT))


def by_other_rules(store, key):
    spoilt(store, key, rules=2, generations=[])


def of_another_shape(store, key):
    spoilt(store, key, generations=7)


def empty(store, key):
    put(store, key, b"")


@pytest.mark.parametrize(
    "harm", [damaged, of_another_log, of_another_number, under_another_number, by_other_rules, of_another_shape, empty]
)
@pytest.mark.parametrize("which", [slice(None), slice(1, None)])
def test_a_wrong_summary_changes_nothing(store, log, harm, which):
    for key in summaries(store)[which]:
        harm(store, key)
    late = log_on(store)
    late.refresh()
    assert late.history == without_summaries(store) == log.history


def test_every_flipped_byte_of_a_summary_changes_nothing(store, log):
    first, last = summaries(store)
    store.inner.delete([first])
    data = store.read(last, LIMIT)
    for at in range(0, len(data), 7):
        put(store, last, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert log_on(store).refresh() == log.history, at


def test_a_summary_of_entries_that_the_log_has_lost_is_not_used(store, log):
    for number in range(10, log.history.last + 1):
        store.inner.delete([entry_key(number), copy_key(number)])
    shorter = log_on(store)
    assert shorter.refresh() == without_summaries(store)
    assert shorter.history.last == 9
    # Other entries win these numbers; the summaries of the lost ones still are not theirs.
    for _ in range(log.history.last):
        shorter.settle()
    assert log_on(store).refresh() == without_summaries(store) == shorter.history


def test_a_summary_whose_entry_is_damaged_is_judged_by_the_copy_of_that_entry(store, log):
    number = int(summaries(store)[-1][-15:-5])
    store.inner.delete([entry_key(number)])
    late = log_on(store)
    assert len(reads(store, late)) < 2 * EVERY
    assert late.history == log.history


def test_a_store_that_refuses_summaries_takes_entries_all_the_same(store):
    def no_summaries(_, key):
        if "log-summary/" in key:
            raise StoreProblem("no space left")

    store.before = no_summaries
    log = log_on(store)
    term = log.claim("a")
    for _ in range(3 * EVERY):
        log.settle(term)
    assert log_on(store).refresh().last == 3 * EVERY + 1


def test_old_damage_in_both_copies_does_not_close_a_store_that_has_a_summary(store, log):
    store.inner.delete([entry_key(2), copy_key(2)])
    assert log_on(store).refresh() == log.history
    for key in summaries(store):
        store.inner.delete([key])
    with pytest.raises(Damaged, match="entry 2 of the log cannot be read"):
        log_on(store).refresh()
