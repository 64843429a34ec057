import secrets
import threading
import time

import pytest
from tests.checkpoint.hooked_store import HookedStore
from tests.checkpoint.images import fill, whole

from closeranks.checkpoint import keeper_durable
from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_durable import Durable
from closeranks.checkpoint.keeper_messages import Publish
from closeranks.checkpoint.keeper_work import GivenUp, Images, Mailbox, Ticket
from closeranks.checkpoint.keeper_writing import NotOurs
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.problems import BaseLost, Fenced, SaveFailed, StoreProblem
from closeranks.checkpoint.retention import Policy
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.writing import Options


class Stand:
    """The durable part of a keeper over a store in memory whose calls can be spoiled."""

    def __init__(self, monkeypatch, *, writers=(0,), memory=None, lead=True, **config):
        self.memory = memory or MemoryStore()
        self.store = HookedStore(self.memory)
        monkeypatch.setattr(keeper_durable, "open_store", lambda _url: self.store)
        self.writers, self.lead, self.saves = writers, lead, 0
        self.durable = Durable(KeeperConfig(store="memory:", job="job", owner="test", lead=lead, **config))
        self.term = self.durable.open().term
        self.arenas = [Arena.create("test") for _ in writers]

    def ticket(self, step=1, *, world=None, attempt="", filled=True):
        if filled:
            for writer, arena in zip(self.writers, self.arenas, strict=True):
                fill(arena, [whole(f"w{writer}", 1000)], step=step)
        self.saves += 1
        publish = Publish(
            save=self.saves,
            step=step,
            attempt=attempt or attempt_name(self.term, step, secrets.token_hex(4)),
            writers=self.writers,
            world=world or len(self.writers),
            lead=self.lead,
            layout="replicated",
            deadline_s=10.0,
        )
        return Ticket(Images(publish, self.arenas, Options()), "durable", 0.0, Mailbox())

    def objects(self, text=""):
        return [row.key for row in self.memory.list("data/") if text in row.key]


def once(method, problem, part=""):
    """What spoils the first such call."""
    left = [problem]

    def spoil(called, key):
        if called == method and part in key and left:
            raise left.pop()

    return spoil


@pytest.mark.parametrize("doubtful", [False, True])
def test_one_transient_error_of_a_write_is_retried(monkeypatch, doubtful):
    stand = Stand(monkeypatch)
    stand.store.before = once("write", StoreProblem("EIO", transient=True, doubtful=doubtful))
    assert stand.durable.save(stand.ticket()).generation


def test_a_write_whose_answer_was_lost_is_written_again_and_not_stumbled_over(monkeypatch):
    stand = Stand(monkeypatch)
    stand.store.after = once("write", StoreProblem("the answer was lost", doubtful=True))
    assert stand.durable.save(stand.ticket()).generation


def test_a_second_error_of_the_same_write_ends_the_save_and_leaves_no_bytes(monkeypatch):
    stand = Stand(monkeypatch, writers=(0, 1))

    def spoil(method, key):
        if method == "write" and "w00001" in key:
            raise StoreProblem("EIO", transient=True)

    stand.store.before = spoil
    with pytest.raises(StoreProblem, match="EIO"):
        stand.durable.save(stand.ticket())
    assert stand.objects("w00001") == []
    stand.store.before = lambda _method, _key: None
    assert stand.durable.tidy().freed_bytes > 0  # what the first writer had published goes with the attempt
    assert stand.objects() == []


def test_a_full_store_is_not_asked_twice(monkeypatch):
    stand, asked = Stand(monkeypatch), []

    def full(method, key):
        if method == "write":
            asked.append(key)
            raise StoreProblem("no space left; free some")

    stand.store.before = full
    with pytest.raises(StoreProblem, match="no space"):
        stand.durable.save(stand.ticket())
    assert len(asked) == 1


def test_the_other_nodes_are_told_of_a_writer_that_failed(monkeypatch):
    stand = Stand(monkeypatch)
    stand.store.before = once("write", StoreProblem("no space left"))
    with pytest.raises(StoreProblem):
        stand.durable.save(stand.ticket(world=2))
    (key,) = stand.objects()
    assert key.endswith("w00000.failed.json")
    assert b"no space left" in stand.memory.read(key, 1000)


def test_a_save_that_was_given_up_before_its_turn_is_told_to_the_others_as_well(monkeypatch):
    stand = Stand(monkeypatch)
    ticket = stand.ticket(world=2)
    ticket.cancel()
    with pytest.raises(GivenUp):
        stand.durable.save(ticket)
    assert [key.rpartition("/")[2] for key in stand.objects()] == ["w00000.failed.json"]


def test_a_part_whose_index_may_be_there_is_never_called_failed(monkeypatch):
    stand = Stand(monkeypatch)

    def lost_answers(method, key):
        if method == "create" and key.endswith("w00000.json"):
            raise StoreProblem("no answer", doubtful=True)

    stand.store.after = lost_answers
    with pytest.raises(StoreProblem):
        stand.durable.save(stand.ticket(world=2))
    assert stand.objects("failed") == []
    assert stand.objects("safetensors")


def test_nothing_is_published_once_a_save_was_given_up(monkeypatch):
    stand = Stand(monkeypatch)
    ticket = stand.ticket()
    stand.store.after = lambda method, _key: ticket.cancel() if method == "write" else None
    with pytest.raises(GivenUp):
        stand.durable.save(ticket)
    assert stand.objects() == []
    assert not stand.durable.log.refresh().generations


def test_a_save_whose_base_is_gone_is_done_again_in_full_under_another_name(monkeypatch):
    stand = Stand(monkeypatch)
    first = stand.durable.save(stand.ticket(1))
    stale = dict(stand.durable._bases)
    for step in (2, 3):
        fill(stand.arenas[0], [whole("other", step * 100)], step=step)
        stand.durable.save(stand.ticket(step, filled=False))
    stand.durable.log.retire(stand.term, [first.generation])
    monkeypatch.setattr(stand.durable, "_usable_bases", lambda: stale if stand.durable._bases else {})
    ticket = stand.ticket(1)
    again = stand.durable.save(ticket)
    assert again.reused_bytes == 0
    manifest = stand.durable.log.history.generations[again.generation].manifest
    assert manifest.bases == ()
    assert manifest.attempt != ticket.publish.attempt


def test_with_other_nodes_a_lost_base_ends_the_save_and_the_next_one_is_full(monkeypatch):
    stand = Stand(monkeypatch)
    stand.durable.save(stand.ticket(1))

    def lost(*_arguments):
        raise BaseLost("generation 2 was retired")

    monkeypatch.setattr(stand.durable, "_agreed", lost)
    with pytest.raises(BaseLost):
        stand.durable.save(stand.ticket(2, world=2))
    assert stand.durable._bases == {}


def test_a_newer_claim_fences_a_save_before_it_writes_a_byte(monkeypatch):
    stand, written = Stand(monkeypatch), []
    CommitLog(stand.memory).claim("somebody else")
    stand.store.before = lambda method, key: written.append(key) if method in {"write", "create"} else None
    with pytest.raises(Fenced):
        stand.durable.save(stand.ticket())
    assert written == []


def test_a_newer_claim_in_mid_save_fences_its_commit(monkeypatch):
    stand = Stand(monkeypatch)
    stand.store.after = lambda method, _key: CommitLog(stand.memory).claim("other") if method == "write" else None
    with pytest.raises(Fenced):
        stand.durable.save(stand.ticket())
    assert CommitLog(stand.memory).refresh().generations == {}


def test_one_who_waits_for_the_lead_stops_when_the_save_is_given_up(monkeypatch):
    stand = Stand(monkeypatch, writers=(1,), lead=False)
    CommitLog(stand.memory).claim("the lead")
    ticket = stand.ticket(world=2, attempt=attempt_name(1, 1, "00000000"))
    timer = threading.Timer(0.1, ticket.cancel)
    published = "w00001.json"
    stand.store.after = lambda method, key: timer.start() if method == "create" and key.endswith(published) else None
    with pytest.raises(GivenUp):
        stand.durable.save(ticket)
    timer.join()
    assert stand.objects("w00001.json")  # it may still be committed: nothing is taken back


def test_one_who_waits_for_the_lead_hears_of_a_third_node_that_failed(monkeypatch):
    stand = Stand(monkeypatch, writers=(1,), lead=False)
    CommitLog(stand.memory).claim("the lead")
    ticket = stand.ticket(world=3, attempt=attempt_name(1, 1, "00000000"))
    stand.memory.create(f"data/{ticket.publish.attempt}/w00002.failed.json", b'{"problem": "no space"}')
    with pytest.raises(SaveFailed, match="writer 2"):
        stand.durable.save(ticket)


def test_tidying_twice_does_nothing_the_second_time(monkeypatch):
    stand = Stand(monkeypatch, retention=Policy(last=1))
    for step in range(3):
        fill(stand.arenas[0], [whole("a", 100 + step)], step=step)
        stand.durable.save(stand.ticket(step, filled=False))
    assert len(stand.durable.tidy().generations) == 2
    asked = []
    stand.store.before = lambda method, _key: asked.append(method)
    assert stand.durable.tidy() is None
    assert "delete" not in asked


def test_what_a_killed_keeper_left_is_swept_by_its_successor(monkeypatch):
    first = Stand(monkeypatch)
    first.store.before = lambda method, key: 1 / 0 if method == "create" and key.startswith("log/") else None
    with pytest.raises(ZeroDivisionError):
        first.durable.save(first.ticket())
    assert first.objects()
    second = Stand(monkeypatch, memory=first.memory)
    second.durable.save(second.ticket(2))
    assert second.durable.tidy().freed_bytes > 0
    assert {key.split("-")[1] for key in second.objects()} == {"s000000000002"}


def test_an_attempt_that_somebody_has_written_already_is_left_alone(monkeypatch):
    first = Stand(monkeypatch, writers=(1,), lead=False)
    CommitLog(first.memory).claim("the lead")
    attempt = attempt_name(1, 1, "00000000")
    ticket = first.ticket(world=2, attempt=attempt)
    ticket.has_read = ticket.cancel  # killed while it waited for the lead
    with pytest.raises(GivenUp):
        first.durable.save(ticket)
    before = first.objects()
    again = Stand(monkeypatch, memory=first.memory, writers=(1,), lead=False)
    with pytest.raises(NotOurs, match="begin a new attempt"):
        again.durable.save(again.ticket(world=2, attempt=attempt))
    assert again.objects() == before


def test_a_lead_that_is_fenced_while_it_waits_for_other_writers_learns_it_long_before_its_deadline(monkeypatch):
    monkeypatch.setattr(keeper_durable, "_FENCE_EVERY_S", 0.05)
    stand, left = Stand(monkeypatch), [True]

    def claim_once(method, key):
        if method == "list" and key.startswith("data/t") and left:
            left.clear()
            CommitLog(stand.memory).claim("another lead")

    stand.store.after = claim_once
    ticket = stand.ticket(world=2)
    with pytest.raises(Fenced, match="another lead has claimed"):
        stand.durable.save(ticket)
    assert time.monotonic() < ticket.deadline_s - 5


def test_a_lead_that_is_fenced_while_it_tidies_appends_and_deletes_nothing(monkeypatch):
    stand = Stand(monkeypatch)
    stand.store.before = once("write", StoreProblem("no space left"))
    with pytest.raises(StoreProblem):
        stand.durable.save(stand.ticket(world=2))
    other = CommitLog(stand.memory)
    assert stand.objects("failed")

    def claim_once(method, key):
        if method == "list" and key == "data/":  # after the term was looked at, before the sweep decides
            stand.store.before = lambda *_: None
            other.claim("another lead")

    stand.store.before = claim_once
    before = stand.objects()
    with pytest.raises(Fenced, match="another lead has claimed"):
        stand.durable.tidy()
    assert stand.objects() == before
    assert other.refresh().last == 2


def test_one_transient_error_while_looking_for_the_commit_of_the_lead_is_tried_again(monkeypatch):
    stand = Stand(monkeypatch, writers=(1,), lead=False)
    CommitLog(stand.memory).claim("the lead")
    ticket = stand.ticket(world=3, attempt=attempt_name(1, 1, "00000000"))
    stand.memory.create(f"data/{ticket.publish.attempt}/w00002.failed.json", b'{"problem": "no space"}')
    stand.store.before = once("list", StoreProblem("EIO", transient=True), "data/")
    with pytest.raises(SaveFailed, match="writer 2"):
        stand.durable.save(ticket)
