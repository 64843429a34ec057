from hypothesis import given
from hypothesis import strategies as st

from closeranks.decide.budgets import (
    Exceeded,
    Intensity,
    Ledger,
    Limits,
    Within,
    charge_cause,
    charge_cold,
    charge_incident,
    charge_spare,
    charge_start,
    spend,
    stepped,
)

LIMIT = Intensity(most=3, period_s=10.0)
gaps_s = st.lists(st.integers(0, 12).map(float), max_size=40)


@given(gaps_s)
def test_no_window_of_the_period_holds_more_than_the_limit(gaps):
    times, booked, now_s = (), [], 0.0
    for gap_s in gaps:
        now_s += gap_s
        times, fits = spend(times, LIMIT, now_s)
        booked += [now_s] if fits else []
        recent = [t for t in booked if now_s - t < LIMIT.period_s]
        assert len(recent) <= LIMIT.most
        assert fits or len(recent) == LIMIT.most, "refused only when the budget is used up"


@given(st.integers(0, 5))
def test_a_limit_of_n_allows_n_and_refuses_the_next(most):
    times = ()
    for _ in range(most):
        times, fits = spend(times, Intensity(most=most, period_s=1.0), 5.0)
        assert fits
    assert spend(times, Intensity(most=most, period_s=1.0), 5.0) == (times, False)


def test_causes_and_seats_have_budgets_of_their_own():
    ledger = Ledger(limits=Limits(same_cause=Intensity(most=1, period_s=60.0)))
    ledger, first = charge_cause(ledger, "killed", 0, 1.0)
    ledger, other_seat = charge_cause(ledger, "killed", 1, 1.0)
    ledger, other_cause = charge_cause(ledger, "frozen", 0, 1.0)
    after, again = charge_cause(ledger, "killed", 0, 2.0)
    assert (first, other_seat, other_cause) == (Within(),) * 3
    assert again == Exceeded(reason="seat 0: 'killed' more than 1 times within 60 s")
    assert after == ledger, "a refusal books nothing"
    assert charge_cause(ledger, "killed", 0, 61.0)[1] == Within()


def test_incidents_have_an_overall_budget():
    ledger = Ledger(limits=Limits(incidents=Intensity(most=1, period_s=60.0)))
    ledger, first = charge_incident(ledger, 0.0)
    _, second = charge_incident(ledger, 1.0)
    assert isinstance(first, Within)
    assert isinstance(second, Exceeded)


def test_the_start_up_budget_is_whole_again_after_a_step_and_the_cold_one_is_not():
    ledger = Ledger(limits=Limits(cold_restarts=1))
    ledger, _ = charge_start(ledger)
    ledger, _ = charge_cold(ledger)
    assert isinstance(charge_start(ledger)[1], Exceeded)
    ledger = stepped(ledger)
    assert isinstance(charge_start(ledger)[1], Within)
    assert isinstance(charge_cold(ledger)[1], Exceeded)


def test_spares_may_be_started_in_proportion_to_how_many_are_wanted():
    ledger, started = Ledger(limits=Limits(spare_starts=Intensity(most=2, period_s=60.0))), 0
    while True:
        ledger, verdict = charge_spare(ledger, 3, 0.0)
        if isinstance(verdict, Exceeded):
            break
        started += 1
    assert started == 6
