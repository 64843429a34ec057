"""The bound on a memory home."""

import pytest

from closeranks.checkpoint.problems import StoreProblem
from closeranks.checkpoint.stores.memory import MemoryStore


def test_a_memory_home_takes_no_more_than_its_limit_and_says_so():
    store = MemoryStore(limit_bytes=100)
    store.write("data/a", [memoryview(bytes(60))])
    for call in (lambda: store.write("data/b", [memoryview(bytes(41))]), lambda: store.create("data/b", bytes(41))):
        with pytest.raises(
            StoreProblem, match=r"data/b: expected room for 41 bytes, got 40 of 100 free; raise the limit"
        ):
            call()
    store.create("data/b", bytes(40))
    assert store.used_bytes == 100
    store.delete(["data/a"])
    assert store.used_bytes == 40
    store.write("data/c", [memoryview(bytes(60))])
