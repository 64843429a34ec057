from hypothesis import given
from hypothesis import strategies as st

from closeranks.detect.corruption import Evidence, Verdict, digest_every, judge, vote

NOBODY = frozenset()


def seats(*fingerprints, procs=None, finite=()):
    return [
        Evidence(proc=(procs or range(99))[seat], finite=seat not in finite, norm=1.0, fingerprint=fingerprint)
        for seat, fingerprint in enumerate(fingerprints)
    ]


@given(st.integers(2, 9), st.data())
def test_a_minority_is_outvoted_whoever_it_is(count, data):
    odd = data.draw(st.sets(st.integers(0, count - 1), max_size=(count - 1) // 2))
    counted = vote({seat: f"odd{seat}" if seat in odd else "same" for seat in range(count)})
    assert (counted.settled, counted.digest, set(counted.outvoted)) == (True, "same", odd)


def test_two_halves_name_nobody():
    assert not vote({0: 1, 1: 2}).settled
    assert not vote({0: 1, 1: 1, 2: 2, 3: 2}).settled


def test_one_seat_that_finds_something_else_the_second_time_had_a_transient_fault():
    found = judge(seats(1, 2, 3), seats(1, 9, 3), frozenset({1}), NOBODY)
    assert (found.verdict, found.seats) == (Verdict.TRANSIENT, (1,))


def test_one_seat_that_is_odd_in_another_way_each_time_has_a_persistent_fault():
    found = judge(seats(1, 2, 3), seats(1, 9, 3), frozenset({1}), frozenset({1}))
    assert (found.verdict, found.seats) == (Verdict.PERSISTENT, (1,))


def test_the_same_again_convicts_nobody():
    found = judge(seats(1, 2, 3), seats(1, 2, 3), frozenset({1}), frozenset({1}))
    assert (found.verdict, found.seats) == (Verdict.REPEATED, ())


def test_another_process_tells_a_device_from_the_data():
    first = seats(1, 2, 3)
    same = judge(first, seats(1, 2, 3, procs=[0, 7, 2]), frozenset({1}), frozenset({1}))
    other = judge(first, seats(1, 9, 3, procs=[0, 7, 2]), frozenset({1}), NOBODY)
    assert (same.verdict, same.seats) == (Verdict.CORRECT, ())
    assert (other.verdict, other.seats) == (Verdict.PERSISTENT, (1,))


@given(st.integers(2, 8))
def test_a_step_that_most_seats_cannot_repeat_blames_no_device(count):
    found = judge(seats(*range(count)), seats(*range(100, 100 + count)), frozenset({0}), frozenset({0}))
    assert (found.verdict, found.seats) == (Verdict.UNREPEATABLE, ())


def test_digests_come_as_often_as_their_share_of_the_time_allows():
    assert digest_every(0.0001, 0.1, 0.005) == 1
    assert digest_every(0.05, 0.1, 0.005) == 100
    assert digest_every(1.0, 0.0, 0.005) == 1
    assert digest_every(0.3, 0.1, 1.0) == 1  # in every step: one that was interrupted took longer than a step
