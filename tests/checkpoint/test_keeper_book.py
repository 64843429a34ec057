import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint.keeper_book import Book
from closeranks.checkpoint.keeper_messages import (
    Committed,
    Final,
    Freed,
    Kept,
    Publish,
    SaveLost,
    TierKept,
    TierMissed,
)
from closeranks.checkpoint.tiers import DURABLE, MEMORY

LAG_S = 1.0


def publish(save, deadline_s=10.0):
    return Publish(
        save=save,
        step=save,
        attempt=f"t00000001-s{save:012d}-00000000",
        writers=(0,),
        world=1,
        lead=True,
        layout="replicated",
        deadline_s=deadline_s,
    )


def committed(save):
    return Committed(save=save, step=save, generation=1, written_bytes=1, reused_bytes=0, seconds={})


def kept(save, tier):
    return TierKept(save=save, step=save, tier=tier, written_bytes=1, seconds=0.0)


def kinds(outcome):
    return [type(report) for report in outcome.reports]


def test_a_save_ends_with_its_report_and_frees_its_arenas_when_nobody_reads_them():
    book = Book(LAG_S)
    assert kinds(book.take(publish(1), (MEMORY, DURABLE), 0.0)) == []
    assert kinds(book.ended(1, MEMORY, None, 0.1)) == []
    assert kinds(book.has_read(1, DURABLE, 0.2)) == [Freed]
    assert kinds(book.ended(1, DURABLE, committed(1), 0.3)) == [Committed]
    assert 1 not in book


def test_a_save_for_which_the_durable_tier_was_not_due_is_kept():
    book = Book(LAG_S)
    book.take(publish(1), (MEMORY, "peers"), 0.0)
    book.ended(1, MEMORY, None, 0.0)
    assert kinds(book.ended(1, "peers", kept(1, "peers"), 0.0)) == [TierKept, Freed, Kept]


def test_at_the_deadline_every_tier_that_still_works_is_reported_and_given_up():
    book = Book(LAG_S)
    book.take(publish(1), (DURABLE, "peers"), 0.0)
    outcome = book.expire(10.0)
    assert kinds(outcome) == [SaveLost, TierMissed, Freed]
    assert "10 s" in outcome.reports[0].problem
    assert outcome.given_up == ((1, DURABLE), (1, "peers"))


def test_what_a_tier_says_after_it_was_given_up_is_not_reported():
    book = Book(LAG_S)
    book.take(publish(1), (DURABLE,), 0.0)
    book.expire(10.0)
    assert kinds(book.has_read(1, DURABLE, 11.0)) == []
    assert kinds(book.ended(1, DURABLE, committed(1), 12.0)) == []


def test_a_slow_tier_keeps_one_save_and_lets_the_second_go_so_that_an_arena_is_free():
    book = Book(LAG_S)
    for save in (1, 2):
        book.take(publish(save), (DURABLE, "peers"), float(save))
        book.ended(save, DURABLE, committed(save), save + 0.5)
    assert book.next_s() == 2.5 + LAG_S
    assert kinds(book.expire(3.4)) == []
    outcome = book.expire(3.5)
    assert kinds(outcome) == [TierMissed, Freed]
    assert outcome.given_up == ((2, "peers"),)
    assert kinds(book.ended(1, "peers", kept(1, "peers"), 4.0)) == [TierKept, Freed]


def test_a_second_save_is_left_to_a_tier_that_is_done_with_the_first_in_time():
    book = Book(LAG_S)
    for save in (1, 2):
        book.take(publish(save), (DURABLE, "peers"), 0.0)
        book.ended(save, DURABLE, committed(save), 0.0)
    book.ended(1, "peers", kept(1, "peers"), 0.9)
    assert kinds(book.expire(5.0)) == []


@given(st.integers(0, 2**32))
def test_whatever_the_tiers_do_every_save_gets_one_final_report_and_one_freed_by_its_deadline(seed):
    draw = random.Random(seed)
    book, now_s, said, taken = Book(LAG_S), 0.0, {}, {}
    tiers = (MEMORY, DURABLE, "peers", "disk")

    def note(outcome):
        for report in outcome.reports:
            said.setdefault(report.save, []).append(report)

    for save in range(draw.randrange(25)):
        now_s += draw.choice([0.0, 0.3, 4.0])
        note(book.expire(now_s))
        assert all(number not in book or now_s < end_s for number, end_s in taken.items())
        named = draw.choice([tiers, (MEMORY, DURABLE), (MEMORY, "peers"), (MEMORY,)])
        deadline_s = draw.choice([1.0, 5.0])
        taken[save] = now_s + deadline_s
        note(book.take(publish(save, deadline_s), named, now_s))
        for _ in range(draw.randrange(5)):
            number, tier = draw.randrange(save + 1), draw.choice(tiers)
            report = committed(number) if tier == DURABLE else kept(number, tier)
            ends = draw.random() < 0.6
            note(book.ended(number, tier, report, now_s) if ends else book.has_read(number, tier, now_s))
        for number in taken:
            finals = [report for report in said.get(number, []) if isinstance(report, Final)]
            freed = [report for report in said.get(number, []) if isinstance(report, Freed)]
            assert len(finals) <= 1
            assert len(freed) <= 1
    note(book.expire(now_s + 100.0))
    assert len(book) == 0
    assert book.next_s() is None
    for number in taken:
        assert sum(isinstance(report, Final) for report in said[number]) == 1
        assert sum(isinstance(report, Freed) for report in said[number]) == 1


@pytest.mark.parametrize("tier", [DURABLE, "peers"])
def test_giving_up_all_leaves_nothing_owed(tier):
    book = Book(LAG_S)
    book.take(publish(1), (MEMORY, tier), 0.0)
    reports = book.give_up_all("the keeper had to end", 0.0).reports
    assert sum(isinstance(report, Final) for report in reports) == 1
    assert sum(isinstance(report, Freed) for report in reports) == 1
    assert len(book) == 0
