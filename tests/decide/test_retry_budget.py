import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.decide.retry_budget import Again, Backoff, Budget, GiveUp, Request, failed, succeeded, wait_s

BACKOFF = Backoff(first_s=0.05, ceiling_s=2.0)


@settings(max_examples=50)
@given(st.integers(1, 10**9), st.floats(0.0, 1.0))
def test_no_wait_is_longer_than_its_bound_or_negative(failures, share):
    bound_s = 2.0 if failures > 6 else 0.05 * 2 ** (failures - 1)
    assert 0.0 <= wait_s(BACKOFF, failures, share) <= bound_s


def test_a_thousand_callers_come_back_spread_over_the_whole_interval():
    waits = sorted(wait_s(BACKOFF, 10, random.Random(seed).random()) for seed in range(1000))
    assert all(abs(wait - 2.0 * place / 1000) < 0.12 for place, wait in enumerate(waits))


@pytest.mark.parametrize(
    ("budget", "request_", "told"),
    [
        (Budget(), Request(failures=1, tries=4), None),
        (Budget(), Request(failures=4, tries=4), "tried 4 times"),
        (Budget(), Request(failures=1, tries=4, until_s=10.01), "after the deadline"),
        (Budget(left=0.5, at_s=10.0), Request(failures=1, tries=4), "the budget"),
    ],
)
def test_a_request_is_tried_again_within_its_tries_its_deadline_and_the_budget(budget, request_, told):
    after, outcome = failed(budget, request_, BACKOFF, 10.0, 0.5)
    if told is None:
        assert outcome == Again(wait_s=0.025)
        assert after.left == budget.left - 1
    else:
        assert isinstance(outcome, GiveUp)
        assert told in outcome.reason
        assert after.left == budget.left


def test_a_service_that_is_down_gets_no_more_than_the_budget_and_its_refill():
    budget, tries = Budget(most=20.0, left=20.0, per_s=1.0), 0
    for number in range(1000):  # a hundred callers a second, for ten seconds
        budget, outcome = failed(budget, Request(failures=1, tries=4), BACKOFF, number / 100, 0.5)
        tries += isinstance(outcome, Again)
    assert 20 <= tries <= 31


def test_successes_refill_the_budget_up_to_its_bound():
    budget = Budget(most=10.0, left=0.0, per_success=0.5, per_s=0.0)
    for _ in range(4):
        budget = succeeded(budget, 1.0)
    assert budget.left == 2.0
    for _ in range(100):
        budget = succeeded(budget, 1.0)
    assert budget.left == 10.0
