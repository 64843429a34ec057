from __future__ import annotations

from pathlib import Path

import pytest

from closeranks.run.linux import count_threads
from closeranks.run.store import TermStore
from real_run import eventually

pytestmark = pytest.mark.process


def count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def connect(store: TermStore):
    from torch.distributed import TCPStore

    return TCPStore(store.host, store.port, is_master=False)


def test_members_meet_at_the_store_and_its_end_is_the_end_of_their_connection():
    from torch.distributed import DistError

    store = TermStore()
    first, second = connect(store), connect(store)
    first.set("k", "v")
    assert second.get("k") == b"v"
    store.close()
    with pytest.raises((DistError, RuntimeError)):
        first.get("k")


def test_a_new_term_reads_nothing_of_the_one_before():
    old = TermStore()
    connect(old).set("term1/k", "v")
    old.close()
    new = TermStore()
    assert not connect(new).check(["term1/k"])
    new.close()


def test_two_hundred_terms_leave_no_thread_and_no_descriptor():
    warm = TermStore()
    connect(warm)
    warm.close()
    before = count_descriptors(), count_threads()
    for term in range(200):
        store = TermStore()
        if term % 20 == 0:
            connect(store).set("k", "v")
        store.close()
    # A thread that has ended may be listed for a moment longer, here or before.
    assert eventually(lambda: count_descriptors() <= before[0] and count_threads() <= before[1], 10.0)
