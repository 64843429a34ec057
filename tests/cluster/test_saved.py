"""What a coordinator finds in the store that nobody lived to tell it of."""

import asyncio
import threading

import pytest
from tests.checkpoint.stored import Stored

from closeranks.checkpoint.format import Verified
from closeranks.checkpoint.stores.opening import open_store
from closeranks.cluster import saved
from closeranks.cluster.saved import newest_in_store
from closeranks.run.options import RunOptions


def newest(url: str | None) -> int | None:
    return asyncio.run(newest_in_store(RunOptions(target="train.py", store=url)))


@pytest.fixture
def store(tmp_path):
    return Stored(open_store(str(tmp_path)))


def test_the_newest_step_that_is_not_known_to_be_broken_is_found(store, tmp_path):
    for step in (3, 5, 7):
        last = store.save(step)
    store.log.append_as_visitor(Verified(generation=last, held=False, detail="a bit was flipped"))
    assert newest(str(tmp_path)) == 5


def test_there_is_none_without_a_store_and_in_one_that_is_empty_or_gone(tmp_path):
    assert newest(None) is None
    assert newest(str(tmp_path / "empty")) is None


def test_a_store_that_does_not_answer_holds_nobody_up(monkeypatch, tmp_path):
    answers = threading.Event()
    monkeypatch.setattr(saved, "_ANSWER_S", 0.01)
    monkeypatch.setattr(saved, "read_log", lambda _: answers.wait(60))

    async def ask():
        found = await newest_in_store(RunOptions(target="train.py", store=str(tmp_path)))
        assert not answers.is_set()
        answers.set()
        return found

    assert asyncio.run(ask()) is None
