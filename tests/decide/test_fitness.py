from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from closeranks.decide import controller
from closeranks.decide.fitness import UNKNOWN_H, Fit, NotYet, fit_for
from closeranks.decide.protocol import Begun, NodeJoined, Note
from closeranks.decide.quarantine import Past, Register, Rules
from closeranks.decide.state import Settings
from closeranks.events import ErrorSeen

hours = st.floats(0, 1e4)


def test_a_new_node_takes_short_work_only():
    assert fit_for(0.5, 0.0) == Fit()
    refused = fit_for(48.0, 2.0)
    assert isinstance(refused, NotYet)
    assert refused.reason == "2 h of 72 h passed without a failure, 48 h of work asked for"


def test_work_without_a_known_end_needs_a_node_past_its_early_life():
    assert isinstance(fit_for(UNKNOWN_H, 71.0), NotYet)
    assert fit_for(UNKNOWN_H, 72.0) == Fit()


@given(hours, hours, hours)
def test_more_hours_passed_never_make_a_node_less_fit(work_h, passed_h, more_h):
    if isinstance(fit_for(work_h, passed_h), Fit):
        assert isinstance(fit_for(work_h, passed_h + more_h), Fit)


def test_a_new_node_of_a_long_job_is_seated_only_where_no_other_has_room():
    rules = Rules(infant_h=72.0)
    state = controller.initial(Settings(seats=1, spares=0, nodes_needed=1, quarantine=rules))
    register = Register(nodes={"old": Past(hours=500.0)})
    notes = []
    for fact in (
        Begun(register=register),
        NodeJoined(node="n1", slots=1, host="new"),
        NodeJoined(node="n2", slots=1, host="old"),
    ):
        state, decisions = controller.step(state, fact, 0.0)
        notes += [d.event.detail for d in decisions if isinstance(d, Note) and isinstance(d.event, ErrorSeen)]
    assert state.barred == {"n1"}
    (note,) = notes
    assert note.startswith("n1 is given seats only where no other has room: 0 h of 72 h passed without a failure")
