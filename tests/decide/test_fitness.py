from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from closeranks.decide.fitness import Fit, NotYet, fit_for

hours = st.floats(0, 1e4)


def test_a_new_node_takes_short_work_only():
    assert fit_for(0.5, 0.0) == Fit()
    refused = fit_for(48.0, 2.0)
    assert isinstance(refused, NotYet)
    assert refused.reason == "2 h of 72 h passed without a failure, 48 h of work asked for"


def test_work_without_a_known_end_needs_a_node_past_its_early_life():
    assert isinstance(fit_for(float("inf"), 71.0), NotYet)
    assert fit_for(float("inf"), 72.0) == Fit()


@given(hours, hours, hours)
def test_more_hours_passed_never_make_a_node_less_fit(work_h, passed_h, more_h):
    if isinstance(fit_for(work_h, passed_h), Fit):
        assert isinstance(fit_for(work_h, passed_h + more_h), Fit)
