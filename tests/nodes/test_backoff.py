import random

from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.nodes.backoff import Backoff, wait_s


@settings(max_examples=50)
@given(st.integers(1, 10**9), st.integers())
def test_no_wait_is_longer_than_its_bound_or_negative(failures, seed):
    backoff = Backoff(first_s=0.05, ceiling_s=2.0)
    bound_s = 2.0 if failures > 6 else 0.05 * 2 ** (failures - 1)
    assert 0.0 <= wait_s(backoff, failures, random.Random(seed)) <= bound_s


def test_the_same_seed_waits_the_same_and_others_do_not():
    def waits(seed):
        draw = random.Random(seed)
        return [wait_s(Backoff(), failures, draw) for failures in range(1, 9)]

    assert waits(1) == waits(1) != waits(2)


def test_a_thousand_callers_come_back_spread_over_the_whole_interval():
    waits = sorted(wait_s(Backoff(), 10, random.Random(seed)) for seed in range(1000))
    assert all(abs(wait - 2.0 * place / 1000) < 0.12 for place, wait in enumerate(waits))
