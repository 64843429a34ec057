import pytest
from test_controller import world_of

from closeranks.decide.protocol import StepRuled
from closeranks.decide.suspicion import Cause
from closeranks.events import Decided, Diagnosed, ErrorSeen, RunEnded, Rung


def members_say(cause, seats=(), *, stop=False, roll_back=False):
    """What every member tells the controller, one after the other."""

    def say(world):
        for seat in range(3):
            sim = world.occupant(seat)
            ruled = StepRuled(
                proc=sim.number,
                term=1,
                step=10,
                cause=cause,
                seats=seats,
                stop=stop,
                roll_back=roll_back,
                reason="seat 1 found something else",
            )
            world.feed(ruled)

    return say


@pytest.mark.parametrize(
    ("cause", "fault", "detector"),
    [(Cause.REPLAY, "wrong result", "replay"), (Cause.OUTVOTED, "corrupt replica", "outvoted")],
)
def test_a_convicted_seat_is_replaced_once_however_many_members_tell_of_it(cause, fault, detector):
    world = world_of(3, 1, at_step={10: members_say(cause, (1,))})
    assert world.run().story()[-1] == "end: completed, code 0"
    assert [one.rung for one in world.events(Decided)] == [Rung.SPARE]
    assert [(one.fault, one.culprits) for one in world.events(Diagnosed)] == [(fault, (1,))]
    assert [one.detector for one in world.events(ErrorSeen)] == [detector]


def test_wrong_mathematics_stop_the_run_with_their_reason_when_that_is_asked_for():
    world = world_of(3, at_step={10: members_say(Cause.NUMERICS, stop=True)})
    assert world.run().story()[-1].startswith("end: failed, code 1")
    assert [one.rung for one in world.events(Decided)] == [Rung.STOP]
    assert world.events(RunEnded) == []  # the supervisor writes that


def test_a_reduction_that_differs_again_is_met_by_new_connections():
    world = world_of(3, at_step={10: members_say(Cause.NUMERICS)})
    assert world.run().story()[-1] == "end: completed, code 0"
    assert [one.rung for one in world.events(Decided)] == [Rung.REGROUP]


def test_seats_of_which_one_errs_and_nobody_knows_which_meet_again_and_nobody_is_named():
    world = world_of(3, at_step={10: members_say(Cause.REPLAY)})
    assert world.run().story()[-1] == "end: completed, code 0"
    assert [one.rung for one in world.events(Decided)] == [Rung.REGROUP]
    assert [(one.fault, one.culprits) for one in world.events(Diagnosed)] == [("wrong result", ())]


@pytest.mark.parametrize("cause", [Cause.SPLIT, Cause.NUMERICS])
def test_state_that_nobody_can_vouch_for_is_given_up(cause):
    world = world_of(3, at_step={10: members_say(cause, roll_back=True)})
    world.run()
    assert world.events(Decided)[0].rung in (Rung.COLD_RESTART, Rung.ROLL_BACK)


def test_seats_that_go_on_to_contradict_each_other_get_new_processes():
    world = world_of(2)

    def insist(step):
        sims = [world.occupant(seat) for seat in range(2)]
        if step >= 10 and {sim.number for sim in sims} == {1, 2}:
            for sim in sims:
                told = {"stop": False, "roll_back": False, "reason": "one of them errs each time"}
                world.feed(StepRuled(proc=sim.number, term=sim.term, step=step, cause=Cause.REPLAY, seats=(), **told))

    world.step_hook = insist
    assert world.run().story()[-1] == "end: completed, code 0"
    *before, last = [one.rung for one in world.events(Decided)]
    assert before and set(before) == {Rung.REGROUP}
    assert last in (Rung.COLD_RESTART, Rung.ROLL_BACK)
