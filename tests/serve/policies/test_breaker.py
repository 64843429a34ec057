import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.serve.policies import Breaker, BreakerSettings, Outcome, State

SETTINGS = BreakerSettings(in_a_row=3, least=10, open_s=5.0, open_max_s=20.0, lease_s=30.0)

EIGHTH = 0.125  # of a second: sums of it are exact


def opened(at_s=0.0):
    breaker = Breaker(SETTINGS)
    for _ in range(3):
        breaker.end(at_s, breaker.begin(at_s), Outcome.BROKEN)
    assert breaker.state is State.OPEN
    return breaker


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_FAULT, Outcome.BUSY, Outcome.GONE, Outcome.OK])
def test_a_flood_of_what_is_not_the_replicas_fault_never_opens_it(outcome):
    breaker = Breaker(SETTINGS)
    for _ in range(1000):
        breaker.end(0.0, breaker.begin(0.0), outcome)
    assert breaker.state is State.CLOSED


@pytest.mark.parametrize("outcome", [Outcome.BROKEN, Outcome.SLOW, Outcome.UNREACHED])
def test_the_replicas_faults_in_a_row_open_it_and_then_nothing_passes(outcome):
    breaker = Breaker(SETTINGS)
    assert [breaker.end(0.0, breaker.begin(0.0), outcome) for _ in range(3)] == [False, False, True]
    assert breaker.blocks(4.9)
    assert breaker.retry_after_s(1.0) == 4.0


def test_a_share_of_faults_opens_it_even_if_none_follow_each_other():
    breaker = Breaker(SETTINGS)
    for number in range(10):
        breaker.end(0.0, breaker.begin(0.0), Outcome.BROKEN if number % 2 else Outcome.OK)
    assert breaker.state is State.OPEN


def test_of_fifty_callers_one_gets_the_lease_and_its_success_closes():
    breaker = opened()
    passed = [breaker.begin(5.0) for _ in range(50) if not breaker.blocks(5.0)]
    assert len(passed) == 1 and passed[0].leased
    breaker.end(6.0, passed[0], Outcome.OK)
    assert breaker.state is State.CLOSED


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_a_bound():
    breaker, now_s, lengths = opened(), 0.0, []
    for _ in range(4):
        lengths.append(breaker.retry_after_s(now_s))
        now_s += lengths[-1]
        breaker.end(now_s, breaker.begin(now_s), Outcome.SLOW)
    assert lengths == [5.0, 10.0, 20.0, 20.0]


def test_one_that_opens_again_soon_after_it_closed_stays_open_for_longer():
    breaker = opened()
    breaker.end(5.0, breaker.begin(5.0), Outcome.OK)
    for now_s, length_s in ((14.0, 10.0), (60.0, 5.0)):
        for _ in range(3):
            breaker.end(now_s, breaker.begin(now_s), Outcome.BROKEN)
        assert breaker.retry_after_s(now_s) == length_s
        breaker.end(now_s + length_s, breaker.begin(now_s + length_s), Outcome.OK)


def test_a_lost_probe_wedges_nothing_and_its_late_answer_changes_nothing():
    breaker = opened()
    lost = breaker.begin(5.0)
    assert breaker.blocks(34.9)
    assert not breaker.blocks(35.0)
    second = breaker.begin(35.0)
    assert second.leased
    breaker.end(36.0, lost, Outcome.OK)
    assert breaker.state is State.HALF_OPEN
    breaker.end(37.0, second, Outcome.OK)
    assert breaker.state is State.CLOSED


def test_a_probe_that_says_nothing_makes_room_for_the_next_one():
    breaker = opened()
    breaker.end(6.0, breaker.begin(5.0), Outcome.GONE)
    assert breaker.begin(6.0).leased


def test_an_outcome_from_before_the_opening_cannot_close_it():
    breaker = Breaker(SETTINGS)
    old = breaker.begin(0.0)
    for _ in range(3):
        breaker.end(1.0, breaker.begin(1.0), Outcome.BROKEN)
    breaker.end(2.0, old, Outcome.OK)
    assert breaker.state is State.OPEN


def test_faults_from_before_it_closed_cannot_open_it_again():
    breaker = Breaker(SETTINGS)
    old = [breaker.begin(0.0) for _ in range(10)]
    for ticket in old[:3]:
        breaker.end(1.0, ticket, Outcome.SLOW)
    breaker.end(7.0, breaker.begin(6.0), Outcome.OK)
    for ticket in old[3:]:
        breaker.end(8.0, ticket, Outcome.SLOW)
    assert breaker.state is State.CLOSED


def test_the_first_byte_of_a_probe_closes_and_its_later_cut_still_counts():
    breaker = opened()
    ticket = breaker.heard(5.0, breaker.begin(5.0))
    assert breaker.state is State.CLOSED
    for _ in range(2):
        breaker.end(6.0, breaker.begin(6.0), Outcome.BROKEN)
    assert breaker.end(6.0, ticket, Outcome.BROKEN)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 160).map(EIGHTH.__mul__), st.sampled_from(["begin", "end"]), st.sampled_from(list(Outcome))
        )
    )
)
def test_whatever_happens_one_lease_is_out_at_most_and_no_wait_is_endless(steps):
    breaker, now_s, tickets = Breaker(SETTINGS), 0.0, []
    for gap_s, what, outcome in steps:
        now_s += gap_s
        if what == "begin" and not breaker.blocks(now_s):
            ticket = breaker.begin(now_s)
            if ticket.leased:
                assert breaker.blocks(now_s)
            tickets.append(ticket)
        elif what == "end" and tickets:
            breaker.end(now_s, tickets.pop(0), outcome)
        assert breaker.retry_after_s(now_s) <= max(SETTINGS.open_max_s, SETTINGS.lease_s)
