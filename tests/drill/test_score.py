import msgspec
import pytest

from closeranks.drill.expected import Expected
from closeranks.drill.score import Effect, Mark, Struck, score
from closeranks.drill.verdict import Evidence, Final, Outcome
from closeranks.events import (
    Decided,
    Diagnosed,
    ErrorSeen,
    FaultInjected,
    IncidentClosed,
    IncidentOpened,
    ProcessSeated,
    Record,
    Rung,
    SaveFailed,
    StepClosed,
)

FINALS = {seat: Final(step=3, digest="d", local=f"l{seat}") for seat in (0, 1, 2)}
OTHER = {**FINALS, 1: Final(step=3, digest="other", local="l1")}
EXPECTED = Expected(detect_s=1.0, faults=("process killed",), rungs=(Rung.SPARE,), rto_s=4.0)
STRUCK = Struck(seat=1, all_seats=(1,))
STRIKE = (10.0, FaultInjected(fault="kill", seat=1, proc=2, step=2, moment="backward"))
SEEN = (10.5, ErrorSeen(detector="exit", seat=1, proc=2, detail="s1.1 was ended by SIGKILL", incident=1))
OPENED = (10.5, IncidentOpened(incident=1, seats=(1,), summary="s1.1 was ended"))


def diagnosed(fault="process killed", seat=1):
    return (10.6, Diagnosed(incident=1, fault=fault, culprits=(seat,), confidence=0.9, evidence=()))


def decided(rung=Rung.SPARE):
    return (10.6, Decided(incident=1, rung=rung, term=2, reason="r"))


def seated(seat, incarnation=2):
    return (10.7, ProcessSeated(proc=9, seat=seat, incarnation=incarnation))


def closed(lost=0, at_s=12.0):
    return (at_s, IncidentClosed(incident=1, outcome="recovered", steps_lost=lost, first_step_s=at_s - 10.5))


def run(*events, exit_code=0, finals=FINALS):
    steps = [(float(i), StepClosed(step=i, began_mono_s=i, closed_mono_s=i + 1, losses=(0.5,))) for i in range(3)]
    records = tuple(
        Record(seq=i, wall_s=0.0, mono_s=at_s, run="r", node="n", term=1, event=event)
        for i, (at_s, event) in enumerate([*steps, *events])
    )
    return Evidence(exit_code=exit_code, records=records, finals=finals)


UNDISTURBED = run()
RECOVERED = (STRIKE, OPENED, SEEN, diagnosed(), decided(), seated(1), closed())


def judged(*events, expected=EXPECTED, struck=STRUCK, **ending):
    return score(expected, struck, UNDISTURBED, run(*events, **ending))


def test_a_fault_that_was_seen_named_and_recovered_from_is_right_in_all():
    found = judged(*RECOVERED)
    assert (found.outcome, found.reasons) == (Outcome.HELD, ())
    assert (found.effect, found.equal, found.kept) == (Effect.RECOVERED, True, True)
    assert (found.detected_s, found.detector) == (0.5, "exit")
    assert found.diagnosed_s == pytest.approx(0.6)
    assert found.recovered_s == 2.0
    assert (found.culprit, found.diagnosis, found.action) == (Mark.RIGHT, Mark.RIGHT, Mark.RIGHT)
    assert (found.rpo_steps, found.rto_s) == (0, 4.0)


def test_what_happened_before_the_strike_is_not_its_detection():
    early = (9.0, SEEN[1])
    assert judged(early, STRIKE).detected_s is None


def test_a_fault_that_never_struck_is_unknown():
    assert judged(SEEN).outcome is Outcome.UNKNOWN
    other = (10.0, msgspec.structs.replace(STRIKE[1], seat=0))
    found = judged(other)
    assert (found.outcome, found.effect) == (Outcome.UNKNOWN, Effect.NEVER_STRUCK)
    assert "the one before it" in found.reasons[0]


def test_without_an_undisturbed_run_nothing_is_known():
    assert score(EXPECTED, STRUCK, run(exit_code=1), run(*RECOVERED)).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("changed", "word", "mark"),
    [
        (diagnosed(seat=0), "culprit: expected seat 1, got [0]", "culprit"),
        (diagnosed(fault="unknown"), "diagnosis: expected process killed, got unknown", "diagnosis"),
        (decided(Rung.COLD_RESTART), "action: got cold restart", "action"),
    ],
)
def test_a_wrong_name_kind_or_action_is_wrong(changed, word, mark):
    events = [changed if type(event[1]) is type(changed[1]) else event for event in RECOVERED]
    found = judged(*events)
    assert found.outcome is Outcome.BROKEN
    assert word in "; ".join(found.reasons)
    assert getattr(found, mark) is Mark.WRONG


def test_late_detection_breaks_a_cell_and_so_do_both_promises():
    strict = Expected(detect_s=0.1, faults=("process killed",), rungs=(Rung.SPARE,), rto_s=1.0)
    found = judged(STRIKE, OPENED, diagnosed(), decided(), closed(lost=2), expected=strict)
    told = "; ".join(found.reasons)
    assert "detected after 0.5 s, promised 0.1 s" in told
    assert "RPO: 2 steps were lost, promised 0" in told
    assert "RTO: 2.0 s to the first new step, promised 1 s" in told
    assert not found.kept


def test_the_loss_of_a_healthy_process_is_held_against_the_cell_unless_the_whole_group_began_anew():
    found = judged(*RECOVERED, seated(0))
    assert found.replaced == (0,)
    assert found.outcome is Outcome.BROKEN
    anew = Expected(detect_s=1.0, faults=("process killed",), rungs=(Rung.COLD_RESTART,))
    events = [event for event in RECOVERED if not isinstance(event[1], Decided)]
    assert judged(*events, decided(Rung.COLD_RESTART), seated(0), expected=anew).replaced == ()


def test_a_value_that_changes_nothing_is_masked_and_one_that_does_is_harm():
    values = msgspec.structs.replace(EXPECTED, maskable=True)
    masked = judged(STRIKE, expected=values)
    assert (masked.outcome, masked.effect, masked.kept) == (Outcome.HELD, Effect.MASKED, True)
    harm = judged(STRIKE, expected=values, finals=OTHER)
    assert (harm.outcome, harm.effect, harm.kept) == (Outcome.BROKEN, Effect.UNNOTICED, False)
    assert judged(*RECOVERED, expected=values, finals=OTHER).effect is Effect.HARMFUL


def test_what_has_to_be_seen_is_wrong_unseen_though_it_changed_nothing():
    found = judged(STRIKE)
    assert "nothing was detected" in found.reasons
    assert (found.effect, found.equal, found.kept) == (Effect.UNSEEN, True, False)


def test_a_run_that_did_not_end_or_ended_otherwise_is_stopped():
    hung = judged(STRIKE, exit_code=None, finals={})
    assert hung.effect is Effect.STOPPED
    assert "the run did not end in time, expected 0" in hung.reasons
    stop = Expected(detect_s=1.0, rungs=(Rung.STOP,), exit_codes=(1,))
    stopped = judged(STRIKE, OPENED, diagnosed(), decided(Rung.STOP), exit_code=1, finals={}, expected=stop)
    assert (stopped.outcome, stopped.effect, stopped.kept) == (Outcome.HELD, Effect.STOPPED, False)


def test_a_warning_that_says_it_is_a_diagnosis_without_an_incident():
    unsaved = Expected(detect_s=1.0, said=("No space left",), culprit=False, exit_codes=(0, 74))
    warning = (10.2, SaveFailed(step=3, problem="expected room, got no space left on device"))
    found = judged(STRIKE, warning, expected=unsaved, exit_code=74)
    assert (found.outcome, found.diagnosis) == (Outcome.HELD, Mark.RIGHT)
    assert found.detector == "save"
    other = (10.2, SaveFailed(step=3, problem="the keeper is gone"))
    assert judged(STRIKE, other, expected=unsaved).diagnosis is Mark.WRONG


def test_a_diagnosis_that_names_nobody_gives_way_to_one_that_does_where_a_name_is_asked_for():
    nobody = (10.4, Diagnosed(incident=1, fault="coordinator lost", culprits=(), confidence=0.9, evidence=()))
    found = judged(STRIKE, nobody, *RECOVERED[1:])
    assert (found.outcome, found.culprit, found.said) == (Outcome.HELD, Mark.RIGHT, "process killed")
    not_asked = msgspec.structs.replace(EXPECTED, culprit=False)
    assert judged(STRIKE, nobody, *RECOVERED[1:], expected=not_asked).said == "coordinator lost"


def test_a_control_is_right_when_nothing_is_done_and_disturbed_by_any_action():
    nothing = Expected(detect_s=0.0, culprit=False)
    control = Struck(seat=1, all_seats=(1,), control=True)
    calm = judged(STRIKE, expected=nothing, struck=control)
    assert (calm.outcome, calm.effect, calm.kept) == (Outcome.HELD, Effect.LEFT_ALONE, True)
    acted = judged(*RECOVERED, expected=nothing, struck=control)
    assert (acted.outcome, acted.effect) == (Outcome.BROKEN, Effect.DISTURBED)


def test_no_action_is_right_where_waiting_is():
    waits = msgspec.structs.replace(EXPECTED, rungs=(Rung.WAIT, Rung.SPARE))
    assert judged(STRIKE, OPENED, diagnosed(), expected=waits).action is Mark.NOT_ASKED
    assert judged(STRIKE, OPENED, diagnosed()).action is Mark.NOBODY
