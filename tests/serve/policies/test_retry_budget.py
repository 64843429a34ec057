from random import Random

from hypothesis import given
from hypothesis import strategies as st

from closeranks.serve.policies import BudgetSettings, Kind, RetryBudget, backoff_s, retry_after_s

SETTINGS = BudgetSettings(share=0.2, floor_per_s=1.0, window_s=10.0)
FLOOR = 10

EIGHTH = 0.125  # of a second: sums of it are exact


def test_a_thousand_simultaneous_failures_get_no_more_retries_than_the_budget_has():
    budget = RetryBudget(SETTINGS)
    for _ in range(1000):
        budget.began(50.0)
    granted = [budget.take(50.0, Kind.RETRY) for _ in range(1000)]
    assert sum(permit is not None for permit in granted) == FLOOR + 200
    assert budget.refused == 1000 - FLOOR - 200


def test_what_waits_in_its_pause_counts_and_so_does_what_was_given_back_a_moment_ago():
    budget = RetryBudget(SETTINGS)
    permits = [budget.take(0.0, Kind.RETRY) for _ in range(FLOOR)]
    assert budget.take(0.0, Kind.RETRY) is None
    for permit in permits:
        budget.give_back(permit)
    assert budget.take(5.0, Kind.RETRY) is None
    assert budget.take(10.0, Kind.RETRY) is not None


def test_an_attempt_that_lasts_longer_than_the_window_still_counts():
    budget = RetryBudget(SETTINGS)
    permits = [budget.take(0.0, Kind.HEDGE) for _ in range(FLOOR)]
    assert budget.take(60.0, Kind.RETRY) is None
    budget.give_back(permits[0])
    assert budget.take(60.0, Kind.RETRY) is not None


def test_requests_of_minutes_are_traffic_as_long_as_they_last():
    budget = RetryBudget(SETTINGS)
    for _ in range(100):
        budget.began(0.0)
    assert budget.allowed(300.0, Kind.RETRY) == FLOOR + 20
    for _ in range(100):
        budget.ended()
    assert budget.allowed(300.0, Kind.RETRY) == FLOOR


def test_every_stream_of_a_lost_replica_may_be_resumed_and_that_is_gone_for_retries():
    budget = RetryBudget(SETTINGS)
    for _ in range(1000):
        budget.began(0.0)
    assert all(budget.take(1.0, Kind.RESUME) for _ in range(500))
    assert budget.take(1.0, Kind.RETRY) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 16).map(EIGHTH.__mul__), st.sampled_from(["began", "take", "give", "ended"])),
        max_size=200,
    )
)
def test_the_budget_is_never_overdrawn_whatever_happens(steps):
    budget, now_s, out, firsts, granted = RetryBudget(SETTINGS), 0.0, [], [], []
    for gap_s, what in steps:
        now_s += gap_s
        if what == "began":
            budget.began(now_s)
            firsts.append(now_s)
        elif what == "ended":
            budget.ended()
        elif what == "give" and out:
            budget.give_back(out.pop(0))
        elif (permit := budget.take(now_s, Kind.RETRY)) is not None:
            out.append(permit)
            granted.append(now_s)
            recent = sum(when > now_s - SETTINGS.window_s for when in granted)
            assert recent <= FLOOR + SETTINGS.share * len(firsts)
            assert len(out) <= FLOOR + SETTINGS.share * len(firsts)


@given(st.integers(1, 10_000), st.integers())
def test_a_pause_is_drawn_from_nothing_up_to_a_bound_that_doubles_and_ends(tries, seed):
    settings = BudgetSettings(backoff_s=0.1, backoff_max_s=3.0)
    pause_s = backoff_s(settings, Random(seed), tries)
    assert 0 <= pause_s <= min(3.0, 0.1 * 2 ** min(tries - 1, 30))


def test_pauses_of_many_are_spread_over_the_whole_range():
    random = Random(1)
    pauses_s = sorted(backoff_s(BudgetSettings(backoff_s=1.0), random, 1) for _ in range(1000))
    assert pauses_s[0] < 0.02 and 0.4 < pauses_s[500] < 0.6 and pauses_s[-1] > 0.98


def test_retry_after_is_seconds_or_nothing():
    assert retry_after_s(b" 7 ") == 7.0
    assert [retry_after_s(value) for value in (None, b"", b"-1", b"1.5", b"Fri, 31 Dec 1999 23:59:59 GMT")] == [
        None
    ] * 5
