import math

import msgspec
import pytest

from closeranks.drill.fault import Fault, Kind, Moment
from closeranks.drill.plan import Expect
from closeranks.drill.verdict import Evidence, Final, Outcome, judge, losses_by_step, worst
from closeranks.events import FaultInjected, IncidentClosed, IncidentOpened, Record, StepClosed

FAULT = Fault(kind=Kind.KILL, seat=1, step=2, moment=Moment.BACKWARD)
STRUCK = FaultInjected(fault="kill", seat=1, proc=2, step=2, moment="backward")
OPENED = IncidentOpened(incident=1, seats=(1,), summary="seat 1 was killed")
CLOSED = IncidentClosed(incident=1, outcome="recovered", steps_lost=0, first_step_s=0.5)
FINALS = {seat: Final(step=3, digest="d", local=f"l{seat}") for seat in (0, 1)}


def steps(losses=(0.1, 0.2, 0.3)):
    return [StepClosed(step=i, began_mono_s=i, closed_mono_s=i + 1, losses=(x, x)) for i, x in enumerate(losses)]


def run(events, exit_code=0, finals=None):
    records = tuple(
        Record(seq=i, wall_s=0.0, mono_s=float(i), run="r", node="n", term=1, event=event)
        for i, event in enumerate(events)
    )
    return Evidence(exit_code=exit_code, records=records, finals=FINALS if finals is None else finals)


STRICT = Expect()
UNDISTURBED = run(steps())
DRILLED = run([STRUCK, OPENED, CLOSED, *steps()])


def verdict(drilled=DRILLED, undisturbed=UNDISTURBED, expect=STRICT, faults=(FAULT,)):
    return judge(expect, faults, undisturbed, drilled)


def test_an_equal_ending_after_a_recovery_is_held_without_reasons():
    assert verdict().outcome is Outcome.HELD
    assert verdict().reasons == ()


def test_a_fault_that_never_struck_is_unknown_though_all_else_is_right():
    found = verdict(run(steps()))
    assert found.outcome is Outcome.UNKNOWN
    assert found.reasons == ("never struck: kill in backward of step 2, seat 1",)


def test_a_strike_elsewhere_is_not_the_planned_one():
    elsewhere = msgspec.structs.replace(STRUCK, step=3)
    assert verdict(run([elsewhere, OPENED, CLOSED, *steps()])).outcome is Outcome.UNKNOWN


def test_one_strike_does_not_stand_for_two_planned_ones():
    assert verdict(faults=(FAULT, FAULT)).outcome is Outcome.UNKNOWN


def test_a_recovery_strike_counts_at_any_step():
    fault = Fault(kind=Kind.KILL, seat=1, step=2, moment=Moment.RECOVERING)
    struck = msgspec.structs.replace(STRUCK, moment="recovering", step=9)
    assert verdict(run([struck, OPENED, CLOSED, *steps()]), faults=(fault,)).outcome is Outcome.HELD


def test_a_run_that_broke_before_its_second_fault_is_broken_not_unknown():
    later = Fault(kind=Kind.KILL, seat=0, step=9, moment=Moment.APPLY)
    assert verdict(run([STRUCK, OPENED], exit_code=1, finals={}), faults=(FAULT, later)).outcome is Outcome.BROKEN


@pytest.mark.parametrize("exit_code", [None, 1, 137])
def test_another_ending_than_the_expected_one_is_broken(exit_code):
    assert verdict(run([STRUCK, OPENED, CLOSED, *steps()], exit_code)).outcome is Outcome.BROKEN


def test_an_expected_failure_is_held():
    expect = Expect(equality="none", exit_code=7)
    assert verdict(run([STRUCK, OPENED], 7, {}), None, expect).outcome is Outcome.HELD


@pytest.mark.parametrize(
    "final",
    [
        Final(step=2, digest="d", local="l1"),
        Final(step=3, digest="x", local="l1"),
        Final(step=3, digest="d", local="x"),
    ],
)
def test_any_difference_of_a_final_state_is_broken_and_names_the_seat(final):
    found = verdict(run([STRUCK, OPENED, CLOSED, *steps()], finals=FINALS | {1: final}))
    assert found.outcome is Outcome.BROKEN
    assert "seat 1 ended otherwise" in found.reasons[0]


def test_a_seat_without_final_state_is_broken():
    found = verdict(run([STRUCK, OPENED, CLOSED, *steps()], finals={0: FINALS[0]}))
    assert (found.outcome, found.reasons) == (Outcome.BROKEN, ("seat 1 left no final state",))


@pytest.mark.parametrize(
    "undisturbed", [None, run(steps(), exit_code=1), run(steps(), exit_code=None), run([], finals={})]
)
def test_without_an_undisturbed_run_equality_is_unknown(undisturbed):
    assert verdict(undisturbed=undisturbed).outcome is Outcome.UNKNOWN


def test_losses_that_differ_in_the_last_bit_are_broken():
    found = verdict(run([STRUCK, OPENED, CLOSED, *steps((0.1, math.nextafter(0.2, 1), 0.3))]))
    assert found.outcome is Outcome.BROKEN
    assert "losses differ in 1 steps, first in 1" in found.reasons[0]


def test_a_missing_step_is_broken():
    assert verdict(run([STRUCK, OPENED, CLOSED, *steps((0.1, 0.2))])).outcome is Outcome.BROKEN


def test_losses_that_are_nan_in_both_runs_are_equal_and_signed_zeros_are_not():
    assert verdict(run([STRUCK, OPENED, CLOSED, *steps((math.nan,))]), run(steps((math.nan,)))).outcome is Outcome.HELD
    assert verdict(run([STRUCK, OPENED, CLOSED, *steps((0.0,))]), run(steps((-0.0,)))).outcome is Outcome.BROKEN


def test_of_a_repeated_step_the_last_losses_count():
    again = StepClosed(step=1, began_mono_s=5, closed_mono_s=6, losses=(0.9, None), repeated=True)
    assert losses_by_step(run([*steps(), again]).records)[1] == ((0.9).hex(), "none")


def test_steps_lost_beyond_the_expectation_are_broken():
    lost = msgspec.structs.replace(CLOSED, steps_lost=3)
    drilled = run([STRUCK, OPENED, lost, *steps()])
    assert verdict(drilled).outcome is Outcome.BROKEN
    assert verdict(drilled, expect=Expect(steps_lost_max=3, rpo_steps=3)).outcome is Outcome.HELD
    assert verdict(drilled, expect=Expect(steps_lost_max=9, rpo_steps=2)).outcome is Outcome.BROKEN


def test_a_recovery_that_took_too_long_is_broken_and_one_without_a_time_unknown():
    expect = Expect(recovery_s_max=0.4)
    assert verdict(expect=expect).outcome is Outcome.BROKEN
    assert verdict(run([STRUCK, OPENED, *steps()]), expect=expect).outcome is Outcome.UNKNOWN
    assert verdict(expect=Expect(recovery_s_max=0.5)).outcome is Outcome.HELD


def test_a_lethal_fault_without_an_incident_is_unknown():
    assert verdict(run([STRUCK, *steps()])).outcome is Outcome.UNKNOWN


def test_a_harmless_pause_that_opens_an_incident_is_broken():
    pause = Fault(kind=Kind.PAUSE, seat=1, step=2, moment=Moment.BACKWARD)
    struck = msgspec.structs.replace(STRUCK, fault="pause")
    assert verdict(run([struck, *steps()]), faults=(pause,)).outcome is Outcome.HELD
    assert verdict(run([struck, OPENED, CLOSED, *steps()]), faults=(pause,)).outcome is Outcome.BROKEN


def test_the_worst_of_several_drills_counts_and_none_at_all_is_unknown():
    assert worst([Outcome.HELD, Outcome.UNKNOWN, Outcome.BROKEN]) is Outcome.BROKEN
    assert worst([Outcome.HELD, Outcome.UNKNOWN]) is Outcome.UNKNOWN
    assert worst([Outcome.HELD]) is Outcome.HELD
    assert worst([]) is Outcome.UNKNOWN
