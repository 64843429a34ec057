"""Scenarios as transcripts: what the controller decides in the life of one run.

Seat 0 is held by p1 at first, seat 1 by p2, and so on; spares follow. The simulated world gives the facts.
"""

import pytest
from msgspec.structs import replace
from world import World

from closeranks import faults
from closeranks.decide.budgets import Intensity, Limits
from closeranks.decide.controller import initial, step
from closeranks.decide.diagnosis import NO_ANSWER
from closeranks.decide.exits import SEAT_STATE_MISSING
from closeranks.decide.protocol import (
    BeginTerm,
    Begun,
    ConfirmEnd,
    Crash,
    GoOn,
    GroupStuck,
    Isolate,
    LetLeave,
    Origin,
    PlanRestore,
    ProcConfirmed,
    ProcEnded,
    ProcReady,
    ProcStuck,
    StartGroup,
    StartProc,
    StepDone,
    StopAsked,
    TermPoisoned,
    Tick,
)
from closeranks.decide.state import Deadlines, Settings
from closeranks.events import (
    Decided,
    Diagnosed,
    ErrorSeen,
    IncidentClosed,
    IncidentOpened,
    IncidentWidened,
    NormalAgain,
    Phase,
    PhaseBegan,
    ProcessSeated,
    RestorePlanned,
    Rung,
)

BOOM = Crash(error="ValueError", message="boom", where="train.py:31", step=10)


def world_of(seats=3, spares=0, *, at_step=None, plain=False, limits=None, deadlines=None):
    """A world without jitter; ``at_step`` maps steps to what strikes while they are open, once each."""
    world = World(
        settings=Settings(
            seats=seats, spares=spares, limits=limits or Limits(), deadlines=deadlines or Deadlines(join_s=60.0)
        ),
        jitter=0.0,
        plain=plain,
    )
    strikes = dict(at_step or {})

    def strike(number):
        if number in strikes:
            strikes.pop(number)(world)

    world.step_hook = strike
    return world


def kill(*seats):
    return lambda world: [world.kill(world.occupant(seat).number) for seat in seats]


def story(world):
    return "\n".join(world.run().story())


def lines(text):
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_an_undisturbed_run_starts_joins_trains_and_leaves():
    world = world_of(2, 1)
    assert story(world) == lines(
        """
        start group under term 1: p1 p2
        start p3 as a spare
        begin term 1: p1 p2
        go on after step -1, nobody receives
        go on under term 1
        let leave
        end: completed, code 0
        """
    )
    assert [(e.proc, e.seat, e.incarnation) for e in world.events(ProcessSeated)] == [(1, 0, 1), (2, 1, 1)]


def test_one_killed_with_a_spare():
    world = world_of(3, 1, at_step={10: kill(1)})
    assert story(world) == lines(
        """
        start group under term 1: p1 p2 p3
        start p4 as a spare
        begin term 1: p1 p2 p3
        go on after step -1, nobody receives
        go on under term 1
        rung: replace from a spare
        begin term 2: p1 p4 p3
        go on after step 9, seat 0 gives to [1]
        go on under term 2
        start p5 as a spare
        let leave
        end: completed, code 0
        """
    ).replace("begin term 2", "interrupt term 1: p1 p3\nbegin term 2")
    (closed,) = world.events(IncidentClosed)
    assert (closed.outcome, closed.steps_lost) == ("recovered", 0)
    assert 0.1 < closed.first_step_s < 0.5
    assert [e.phase for e in world.events(PhaseBegan)] == list(Phase)
    assert world.events(Diagnosed)[0].fault == "process killed"
    (normal,) = world.events(NormalAgain)
    assert normal.incident == 1
    assert normal.after_s == closed.first_step_s
    assert world.events(ProcessSeated)[-1].incarnation == 2


def test_one_killed_without_a_spare():
    world = world_of(3, at_step={10: kill(1)})
    assert world.run().story()[4:] == [
        "rung: replace by a fork",
        "interrupt term 1: p1 p3",
        "start p4 as s1.2",
        "begin term 2: p1 p4 p3",
        "go on after step 9, seat 0 gives to [1]",
        "go on under term 2",
        "let leave",
        "end: completed, code 0",
    ]


def test_the_donor_killed_during_the_transfer():
    world = world_of(3, 2, at_step={10: kill(1)})
    plans = []

    def hook(decision):
        if isinstance(decision, BeginTerm) and decision.term == 2 and not plans:
            plans.append(decision)
            world.after(0.05, lambda: kill(0)(world))

    world.decision_hook = hook
    tail = world.run().story()[6:]
    assert tail == [
        "rung: replace from a spare",
        "interrupt term 1: p1 p3",
        "begin term 2: p1 p4 p3",
        "go on after step 9, seat 0 gives to [1]",
        "rung: replace from a spare",
        "interrupt term 2: p4 p3",
        "begin term 3: p5 p4 p3",
        "go on after step 9, seat 2 gives to [0, 1]",
        "go on under term 3",
        "start p6 as a spare",
        "start p7 as a spare",
        "let leave",
        "end: completed, code 0",
    ]
    assert len(world.events(IncidentOpened)) == 1
    assert len(world.events(IncidentWidened)) == 1
    assert world.events(IncidentClosed)[0].steps_lost == 0


def test_two_killed_at_once():
    world = world_of(4, 1, at_step={10: kill(0, 2)})
    assert world.run().story()[5:12] == [
        "rung: replace from a spare",
        "interrupt term 1: p2 p3 p4",
        "rung: replace by a fork",
        "start p6 as s2.2",
        "begin term 2: p5 p2 p6 p4",
        "go on after step 9, seat 1 gives to [0, 2]",
        "go on under term 2",
    ]
    assert world.events(IncidentClosed)[0].steps_lost == 0


def test_all_killed_at_once():
    world = world_of(2, at_step={10: kill(0, 1)})
    assert world.run().story()[4:] == [
        "rung: replace by a fork",
        "interrupt term 1: p2",
        "start p3 as s0.2",
        "rung: cold restart",
        "isolate p3",
        "start group under term 2: p4 p5",
        "begin term 2: p4 p5",
        "go on after step -1, nobody receives",
        "go on under term 2",
        "let leave",
        "end: completed, code 0",
    ]
    assert world.events(IncidentClosed)[0].steps_lost == 10
    assert [e.incarnation for e in world.events(ProcessSeated)[-2:]] == [3, 2]


def test_a_frozen_seat_is_isolated_with_its_stack_before_the_next_term():
    world = world_of(3, 1, at_step={10: lambda world: world.freeze(2)})
    assert world.run().story()[5:11] == [
        "rung: replace from a spare",
        "isolate p2, stack first",
        "interrupt term 1: p1 p3",
        "begin term 2: p1 p4 p3",
        "go on after step 9, seat 0 gives to [1]",
        "go on under term 2",
    ]
    assert world.events(Diagnosed)[0].fault == "process frozen"
    assert world.events(ErrorSeen)[0].silent_s == 2.3


def test_a_crash_before_anyone_joined_counts_as_that_of_a_plain_script():
    world = world_of(2)
    world.started_hook = lambda sim: world.after(0.1, lambda: world.exit(sim.number, code=3)) if sim.seat else None
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.COLD_RESTART] * 3 + [Rung.STOP]
    assert world.ended.exit_code == 3


def test_a_crash_after_join_and_before_the_first_step_restarts_once_and_then_stops_with_its_own_message():
    world = world_of(2)
    world.decision_hook = lambda d: (
        world.after(0.005, lambda: world.exit(d.procs[1], code=3)) if isinstance(d, BeginTerm) else None
    )
    assert world.run().story() == [
        "start group under term 1: p1 p2",
        "begin term 1: p1 p2",
        "rung: cold restart",
        "isolate p1",
        "start group under term 2: p3 p4",
        "begin term 2: p3 p4",
        "rung: stop",
        "end: failed, code 3",
    ]
    assert "before the first step" in world.ended.reason
    assert "seldom goes away by itself" in world.ended.reason
    assert world.events(Diagnosed)[0].fault == "start-up crash"


def test_a_crash_that_comes_again_at_the_same_place_and_step_stops():
    world = world_of(3, 1)
    world.step_hook = lambda number: (
        world.exit(world.occupant(number % 3).number, code=1, crash=BOOM) if number == 10 else None
    )
    assert world.run().story()[-2:] == ["rung: stop", "end: failed, code 1"]
    assert [e.rung for e in world.events(Decided)] == [Rung.SPARE, Rung.STOP]
    assert world.events(Diagnosed)[-1].fault == "deterministic bug"
    assert "ValueError at train.py:31 in step 10 came again" in world.ended.reason


def test_state_that_only_the_lost_seat_had_is_no_bug_of_the_script_and_restarts_the_group():
    # With the node of its predecessor what its seat alone held is gone, and every successor would fail alike.
    missing = Crash(error=SEAT_STATE_MISSING, message="", where="train.py:31", step=10)
    failures = [10, 10]

    def fail(world, number):
        if failures and number == failures[-1]:
            failures.pop()
            world.exit(world.occupant(number % 3).number, code=1, crash=missing)

    world = world_of(3, 1)
    world.step_hook = lambda number: fail(world, number)
    assert world.run().ended.outcome == "completed"
    assert [e.rung for e in world.events(Decided)] == [Rung.COLD_RESTART] * 2
    assert not any(e.fault == "deterministic bug" for e in world.events(Diagnosed))


def test_seats_that_fail_alike_at_once_failed_once():
    crash = lambda world: [world.exit(world.occupant(s).number, code=1, crash=BOOM) for s in (0, 1)]  # noqa: E731
    world = world_of(3, 2, at_step={10: crash})
    assert world.run().ended.outcome == "completed"


def test_poison_that_nobody_explains_regroups_in_place_after_a_grace():
    def poison(world):
        for sim in world.living():
            world.feed(TermPoisoned(proc=sim.number, term=1, detail="connection reset"))
            world._pause(sim, 1)

    world = world_of(3, at_step={10: poison})
    assert world.run().story()[4:9] == [
        "rung: regroup in place",
        "begin term 2: p1 p2 p3",
        "go on after step 9, nobody receives",
        "go on under term 2",
        "let leave",
    ]
    opened = world.events(PhaseBegan)
    assert opened[0].phase is Phase.SEE
    decided_s = next(at_s for at_s, d in world.decisions if getattr(getattr(d, "event", None), "rung", None))
    assert 0.5 <= decided_s - opened[0].at_mono_s <= 0.75


def test_regrouping_that_brings_no_progress_is_not_repeated_for_ever():
    world = world_of(2)

    def poison(number):
        if number == 11:
            for sim in world.living():
                world.feed(TermPoisoned(proc=sim.number, term=sim.term, detail="connection reset"))
                world._pause(sim, sim.term)

    world.step_hook = poison
    world.run()
    rungs = [e.rung for e in world.events(Decided)]
    assert rungs[0] is Rung.REGROUP
    assert rungs.count(Rung.REGROUP) < 12
    assert rungs[-1] is Rung.STOP


def test_one_that_left_early_is_replaced_and_stops_the_run_when_it_leaves_again():
    world = world_of(3)
    world.step_hook = lambda n: world.exit(world.occupant(1).number, code=0, left_at_step=9) if n == 10 else None
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.FORK, Rung.STOP]
    assert world.events(Diagnosed)[0].fault == "left early"
    assert (world.ended.outcome, world.ended.exit_code) == ("failed", 1)
    assert "left early after step 9 came again" in world.ended.reason


def test_all_that_left_the_loop_at_the_same_step_completed():
    leave = lambda world: [  # noqa: E731
        world.after(seat, lambda seat=seat: world.exit(world.occupant(seat).number, code=0, left_at_step=9))
        for seat in range(3)
    ]
    world = world_of(3)

    def hook(number):
        if number == 10:
            world.going = None
            leave(world)

    world.step_hook = hook
    world.run()
    assert (world.ended.outcome, world.events(IncidentOpened)) == ("completed", [])


def test_a_corrupt_survivor_is_outvoted_and_receives():
    def corrupt_and_kill(world):
        world.occupant(0).corrupt = "!"
        kill(3)(world)

    world = world_of(4, 1, at_step={10: corrupt_and_kill})
    assert "go on after step 9, seat 1 gives to [0, 3]" in world.run().story()
    assert world.events(RestorePlanned)[-1].outvoted == (0,)
    assert [e.seat for e in world.events(ErrorSeen) if e.detector == "digest"] == [0]
    assert world.ended.outcome == "completed"


def test_survivors_that_contradict_each_other_restart_cold():
    def corrupt_and_kill(world):
        world.occupant(0).corrupt = "!"
        kill(2)(world)

    world = world_of(3, 1, at_step={10: corrupt_and_kill})
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.SPARE, Rung.COLD_RESTART]
    assert "no majority" in world.events(Decided)[-1].reason
    assert world.ended.outcome == "completed"


def test_sharded_state_has_no_donor():
    def shard(world):
        for number, proc in world.state.procs.items():
            world.state.procs[number] = type(proc)(
                **{**{f: getattr(proc, f) for f in proc.__struct_fields__}, "replicated": False}
            )
        kill(1)(world)

    world = world_of(3, 1, at_step={10: shard})
    world.run()
    assert world.events(Decided)[0].rung is Rung.COLD_RESTART
    assert "sharded" in world.events(Decided)[0].reason


def _with_saves(world, every=4, resumes_at=None):
    world.save_every, world.resumes_at, world.saved_step = every, resumes_at, resumes_at
    return world


def test_a_group_that_starts_again_goes_on_with_the_newest_saved_state():
    world = _with_saves(world_of(3, at_step={10: kill(0, 1, 2)}))
    world.run()
    assert [d.origin for d in world.of(StartGroup)] == [Origin.NOTHING, Origin.NEWEST]
    assert "newest saved state, step 7" in world.events(Decided)[-1].reason
    assert world.steps_done == [*range(10), *range(8, 30)], "steps 8 and 9 are done again, nothing else"
    assert [e.steps_lost for e in world.events(IncidentClosed)] == [2]


def test_a_run_that_is_resumed_begins_where_the_earlier_one_had_saved():
    world = _with_saves(world_of(2), resumes_at=11)
    world.run()
    assert world.of(StartGroup)[0].origin is Origin.NEWEST
    assert world.steps_done == list(range(12, 30))


def test_a_loss_before_the_first_new_step_loads_again():
    world = _with_saves(world_of(2), resumes_at=11)
    strike = {"once": True}

    def on_start(decision):
        if isinstance(decision, GoOn) and strike.pop("once", False):
            world.after(0.1, lambda: world.kill(1))

    world.decision_hook = on_start
    world.run()
    assert [d.origin for d in world.of(StartGroup)] == [Origin.NEWEST, Origin.NEWEST]
    assert world.steps_done == list(range(12, 30))


def test_digests_without_a_majority_roll_back_to_what_is_trusted():
    def corrupt_and_kill(world):
        world.occupant(0).corrupt = "!"
        kill(2)(world)

    world = _with_saves(world_of(3, 1, at_step={10: corrupt_and_kill}))
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.SPARE, Rung.ROLL_BACK]
    assert world.of(StartGroup)[1].origin is Origin.VERIFIED
    assert "may hold what is wrong" in world.events(Decided)[1].reason


def test_asked_to_stop_once_finishes_the_step_and_leaves():
    world = world_of(2, 1, at_step={10: lambda world: world.feed(StopAsked(now=False))})
    assert world.run().story()[-3:] == ["end after the step", "let leave", "end: stopped, code 143"]
    assert max(world.steps_done) < 15


def test_asked_to_stop_twice_leaves_now():
    def twice(world):
        world.feed(StopAsked(now=False, signal=2))
        world.feed(StopAsked(now=True, signal=2))

    world = world_of(2, at_step={10: twice})
    assert world.run().story()[-2:] == ["end after the step", "end: stopped, code 130, now"]


def test_asked_again_while_ending_hurries_the_same_end():
    world = world_of(2)
    world.at(100.05, lambda: world.feed(StopAsked(now=False)))
    world.run()
    world.feed(StopAsked(now=True))
    world.feed(StopAsked(now=True))
    assert world.story()[-2:] == ["end: stopped, code 143", "end: stopped, code 143, now"]


def test_a_seat_lost_while_stopping_is_not_replaced():
    def stop_and_kill(world):
        world.feed(StopAsked(now=False))
        kill(1)(world)

    world = world_of(2, 1, at_step={10: stop_and_kill})
    assert world.run().story()[-2:] == ["end after the step", "end: stopped, code 143"]


def test_a_plain_script_restarts_cold_and_completes():
    world = world_of(2, 1, plain=True)
    world.at(101.0, lambda: world.exit(2, code=7))
    assert world.run().story() == [
        "start group under term 1: p1 p2",
        "rung: cold restart",
        "isolate p1",
        "start group under term 2: p3 p4",
        "end: completed, code 0",
    ]
    assert world.events(IncidentClosed)[0].outcome == "recovered"


def test_a_plain_script_that_fails_for_ever_ends_with_the_code_of_its_failure():
    world = world_of(2, plain=True, limits=Limits(cold_restarts=3))
    world.started_hook = lambda sim: world.after(20, lambda: world.exit(sim.number, signal=11)) if sim.seat else None
    world.until = 1000
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.COLD_RESTART] * 3 + [Rung.STOP]
    assert (world.ended.exit_code, len(world.events(IncidentClosed))) == (139, 4)
    assert "all 3 cold restarts are used up" in world.ended.reason


def test_a_seat_that_dies_while_others_have_finished_is_replaced():
    world = world_of(3, 1)
    world.after(0, lambda: None)
    finished = []

    original = world._say

    def say(sim, fact):
        if type(fact).__name__ == "ProcFinished" and sim.seat == 2 and not finished:
            finished.append(sim)
            world.kill(sim.number)
        original(sim, fact)

    world._say = say
    tail = world.run().story()[5:]
    assert tail == [
        "rung: replace from a spare",
        "interrupt term 1: p1 p2",
        "begin term 2: p1 p2 p4",
        "go on after step 29, seat 0 gives to [2]",
        "go on under term 2",
        "let leave",
        "end: completed, code 0",
    ]
    assert world.events(IncidentClosed)[0].first_step_s is None


def at_the_end(strike):
    """A run in which ``strike`` is called once, when all have closed the last step and are asked whether they live."""
    world = world_of(3, 1, deadlines=Deadlines(confirm_s=5.0))
    left = [strike]
    world.decision_hook = lambda d: left.pop()(world) if isinstance(d, ConfirmEnd) and left else None
    return world.run()


@pytest.mark.parametrize(
    "strike", [kill(1), lambda world: world.exit(2, code=9), lambda world: setattr(world.procs[2], "frozen", True)]
)
def test_a_seat_that_is_lost_when_all_have_closed_the_last_step_is_replaced_before_anybody_leaves(strike):
    world = at_the_end(strike)
    assert [e.rung for e in world.events(Decided)] == [Rung.SPARE]
    assert (world.ended.outcome, len(world.of(LetLeave)), len(world.of(ConfirmEnd))) == ("completed", 1, 2)


def test_a_seat_that_lives_and_does_not_say_so_at_the_end_hangs():
    world = world_of(3, 1, deadlines=Deadlines(confirm_s=5.0))
    say = world._say
    world._say = lambda sim, fact: None if isinstance(fact, ProcConfirmed) and sim.number == 2 else say(sim, fact)
    (found,) = world.run().events(Diagnosed)
    assert (found.fault, found.culprits) == (faults.HUNG.name, (1,))


def test_a_seat_whose_state_is_another_one_after_the_last_step_takes_that_of_the_others():
    world = world_of(3, 1)
    world.final_digest = lambda sim: "odd" if sim.number == 3 else "equal"
    world.run()
    assert [(e.fault, e.culprits) for e in world.events(Diagnosed)] == [(faults.CORRUPT_REPLICA.name, (2,))]
    assert (world.ended.outcome, [e.rung for e in world.events(Decided)]) == ("completed", [Rung.SPARE])


@pytest.mark.parametrize("struck", [0, 2])
def test_a_seat_whose_state_changes_in_a_recovery_is_named_whether_it_gave_the_state_or_not(struck):
    world = world_of(4, 2, at_step={10: kill(1)})
    left = [struck]

    def strike(decision):
        if isinstance(decision, PlanRestore) and decision.receivers and left:
            world.occupant(left.pop()).corrupt = " flipped"

    world.decision_hook = strike
    world.run()
    assert [e.culprits for e in world.events(Diagnosed)] == [(1,), (struck,)]
    assert (world.ended.outcome, world.events(Decided)[-1].rung) == ("completed", Rung.SPARE)
    assert {s.digest for s in world.procs.values() if s.seat is not None and s.told_end and s.finished} == {"step 29"}


def test_a_member_that_fails_after_it_was_let_leave_ends_the_run_with_its_code():
    world = world_of(2)
    world.decision_hook = lambda d: world.exit(2, code=9) if type(d).__name__ == "LetLeave" else None
    assert world.run().story()[-3:] == ["let leave", "rung: stop", "end: failed, code 9"]


def test_a_spare_that_dies_is_refilled_within_its_budget():
    world = world_of(2, 1, limits=Limits(spare_starts=Intensity(most=3, period_s=600.0)))
    world.started_hook = lambda sim: world.after(0.2, lambda: world.kill(sim.number)) if sim.seat is None else None
    world.run()
    assert len(world.of(StartProc)) == 3
    assert [e.detector for e in world.events(ErrorSeen)] == ["exit"] * 3 + ["spares"]
    assert (world.ended.outcome, world.events(IncidentOpened)) == ("completed", [])


def test_a_newcomer_that_fails_by_itself_leads_to_the_next_rung():
    world = world_of(3, at_step={10: kill(1)})
    world.started_hook = lambda sim: (
        world.after(0.1, lambda: world.exit(sim.number, code=1)) if sim.incarnation == 2 and not sim.original else None
    )
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.FORK, Rung.COLD_RESTART]


def test_a_newcomer_that_is_killed_gets_one_more_try():
    world = world_of(3, at_step={10: kill(1)})
    world.started_hook = lambda sim: (
        world.after(0.1, lambda: world.kill(sim.number)) if sim.incarnation == 2 and not sim.original else None
    )
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.FORK, Rung.FORK]
    assert world.events(IncidentClosed)[0].steps_lost == 0


def test_a_process_that_cannot_be_ended_lets_nobody_take_its_place():
    world = world_of(2, 1, at_step={10: lambda world: world.freeze(2)})
    world.doers[Isolate] = lambda _: None
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.SPARE, Rung.COLD_RESTART, Rung.STOP]
    assert "could act beside a new group" in world.ended.reason


def test_a_fenced_process_counts_as_gone():
    world = world_of(2, 1, at_step={10: lambda world: world.freeze(2)})

    def fence(decision):
        sim = world.procs[decision.proc]
        sim.alive = False
        fact = ProcEnded(proc=sim.number, code=None, signal=None, crash=None, left_at_step=None, unkillable=True)
        world.after(1, lambda: world._tell_end(sim, fact))

    world.doers[Isolate] = fence
    assert world.run().ended.outcome == "completed"
    assert world.events(IncidentClosed)[0].steps_lost == 0


def on(kind, term, do):
    return lambda decision: do() if isinstance(decision, kind) and decision.term == term else None


def find_frozen(world, sim):
    """What the roll call tells of it, whatever it was doing."""
    world.freeze(sim.number)
    fact = ProcStuck(proc=sim.number, detail=f"its control thread {NO_ANSWER}", silent_s=5.7, allowed_s=4.0)
    world.at(world.now_s + 5.7, lambda: world.feed(fact))


def test_a_seat_that_is_frozen_before_the_first_step_is_named_and_the_group_starts_again():
    world = world_of(3, 1)
    world._suspect = lambda _: None
    world.started_hook = lambda sim: find_frozen(world, sim) if sim.number == 2 else None
    world.run()
    assert (world.events(Diagnosed)[0].fault, world.events(Diagnosed)[0].culprits) == ("process frozen", (1,))
    assert [e.rung for e in world.events(Decided)] == [Rung.COLD_RESTART]
    assert world.ended.outcome == "completed"


@pytest.mark.parametrize("kind", [BeginTerm, PlanRestore, GoOn])
def test_a_seat_that_is_frozen_in_a_recovery_is_replaced_before_the_recovery_is_late(kind):
    endless = Deadlines(join_s=60.0, regroup_s=1000.0, transfer_s=1000.0, pause_s=1000.0, resume_s=1000.0)
    world = world_of(3, 2, at_step={10: kill(1)}, deadlines=endless)
    world._suspect = lambda _: None
    world.decision_hook = on(kind, 2, lambda: find_frozen(world, world.procs[3]))
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.SPARE, Rung.SPARE]
    assert [e.fault for e in world.events(Diagnosed)] == ["process killed", "process frozen"]
    assert (world.ended.outcome, world.events(IncidentClosed)[0].steps_lost) == ("completed", 0)


def test_a_frozen_spare_is_ended_and_costs_the_job_nothing():
    world = world_of(2, 1, at_step={3: lambda world: find_frozen(world, world.procs[3])})
    world.until = 100
    world.run()
    assert world.events(IncidentOpened) == []
    assert "isolate p3, stack first" in world.story()


def test_a_member_frozen_while_the_term_connects_is_found_because_it_does_not_pause():
    world = world_of(3, 1, at_step={10: kill(1)})
    world._suspect = lambda _: None
    world.decision_hook = on(BeginTerm, 2, lambda: world.freeze(1))
    assert world.run().story()[5:] == [
        "rung: replace from a spare",
        "interrupt term 1: p1 p3",
        "begin term 2: p1 p4 p3",
        "rung: regroup in place",
        "interrupt term 2: p1 p4 p3",
        "rung: replace by a fork",
        "isolate p1, stack first",
        "start p5 as s0.2",
        "begin term 3: p5 p4 p3",
        "go on after step 9, seat 2 gives to [0, 1]",
        "go on under term 3",
        "start p6 as a spare",
        "let leave",
        "end: completed, code 0",
    ]
    assert "come back from the recovery after the interrupt within 120 s" in world.events(IncidentWidened)[-1].summary
    assert world.events(IncidentClosed)[0].steps_lost == 0


def test_a_newcomer_that_does_not_get_ready_in_time_leads_to_the_next_rung():
    world = world_of(3, at_step={10: kill(1)}, deadlines=Deadlines(ready_s=5.0))
    world.started_hook = lambda sim: setattr(sim, "frozen", sim.incarnation == 2 and not sim.original)
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.FORK, Rung.COLD_RESTART]
    assert "was not ready to take its seat within 5 s" in world.events(IncidentWidened)[0].summary


def test_a_member_that_does_not_open_an_attempt_after_it_was_told_to_is_replaced():
    world = world_of(3, 2, at_step={10: kill(1)})
    world._suspect = lambda _: None
    world.decision_hook = on(GoOn, 2, lambda: world.freeze(3))
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.SPARE, Rung.SPARE]
    assert (world.ended.outcome, world.events(IncidentClosed)[0].steps_lost) == ("completed", 0)


def test_a_collective_that_failed_before_the_exit_was_seen_is_the_first_sign_of_the_same_incident():
    def poison_and_kill(world):
        world.feed(TermPoisoned(proc=1, term=1, detail="connection closed by peer"))
        world.after(0.2, lambda: kill(1)(world))

    world = world_of(2, 1, at_step={10: poison_and_kill})
    world.run()
    see, diagnose = world.events(PhaseBegan)[:2]
    assert 0.1 < diagnose.at_mono_s - see.at_mono_s < 0.3
    assert [e.rung for e in world.events(Decided)] == [Rung.SPARE]


@pytest.mark.parametrize(("settled", "allowed_s"), [(True, 30.0), (False, 630.0)])
def test_a_spare_that_waited_for_its_rank_gets_time_for_the_rest_of_its_script(settled, allowed_s):
    world = world_of(2, 1, at_step={10: kill(1)})
    world._newcomer_ready = lambda sim: world.feed(ProcReady(proc=sim.number, replicated=True, settled=settled))
    world._connect = lambda term: connect(term) if term != 2 else None
    connect = World._connect.__get__(world)
    world.run()
    late = next(e for e in world.events(ErrorSeen) if e.detector == "deadline")
    assert late.allowed_s == allowed_s


def test_the_last_one_that_fails_after_all_others_left_at_the_same_step_ends_the_run():
    world = world_of(2)

    def leave(number):
        if number == 10:
            world.going = None
            world.exit(1, code=0, left_at_step=9)
            world.after(1, lambda: world.exit(2, code=5, left_at_step=9))

    world.step_hook = leave
    assert world.run().story()[-2:] == ["rung: stop", "end: failed, code 5"]


def test_mismatched_collectives_that_come_again_stop_the_run():
    world = world_of(3)

    def mismatch(number):
        if number == 10:
            world.going = None
            world.feed(GroupStuck(detail="collective 7 differs", suspects=(2,)))

    world.step_hook = mismatch
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.REGROUP, Rung.STOP]
    assert world.events(Diagnosed)[0].culprits == (1,)
    assert "seats [1] do what the others do not: collective 7 differs" in world.ended.reason
    assert "mismatched collective after step 9 came again" in world.ended.reason


@pytest.mark.parametrize("told", ["never", "soon after it"])
def test_a_mismatch_comes_again_though_the_step_before_it_was_heard_of_too_late_the_first_time(told):
    world = world_of(3)

    def mismatch(number):
        if number == 10:
            for sim in world.living():
                sim.closed_step = 10
            world.steps_done.append(10)
        if number >= 10:
            world.going = None
            world.feed(GroupStuck(detail="collective 7 differs", suspects=(2,)))
        if number == 10 and told == "soon after it":
            world.feed(StepDone(step=10, duration_s=0.1))

    world.step_hook = mismatch
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.REGROUP, Rung.STOP]
    assert "mismatched collective after step 10 came again" in world.ended.reason


def test_a_mismatch_that_does_not_come_again_costs_an_attempt():
    def mismatch(world):
        world.going = None
        world.feed(GroupStuck(detail="collective 7 differs", suspects=(2,)))

    world = world_of(3, at_step={10: mismatch})
    assert world.run().ended.outcome == "completed"
    assert world.events(IncidentClosed)[0].steps_lost == 0


def test_some_that_never_join_are_named():
    world = world_of(3, deadlines=Deadlines(join_s=5.0))
    world.started_hook = lambda sim: setattr(sim, "joined", sim.seat == 1)
    world.run()
    assert (world.ended.outcome, world.ended.exit_code) == ("failed", 1)
    assert "seats [1] did not call join() within 5 s" in world.ended.reason
    assert [e.rung for e in world.events(Decided)] == [Rung.COLD_RESTART, Rung.STOP]  # it may have been a bad start
    assert world.events(Diagnosed)[0].fault == faults.HUNG.name


@pytest.mark.parametrize("exit_at_s", [0.1, 1.0])
def test_one_that_exits_without_join_while_others_joined_ends_the_run(exit_at_s):
    world = world_of(3)
    world.started_hook = lambda sim: setattr(sim, "joined", sim.seat == 1)
    world.at(100 + exit_at_s, lambda: world.exit(2, code=0))
    world.run()
    assert "seats [1] exited with success without calling join()" in world.ended.reason
    assert world.ended.exit_code == 1


def test_the_same_cause_on_the_same_seat_has_a_budget_that_a_new_incarnation_cannot_bypass():
    world = world_of(2, 1, limits=Limits(same_cause=Intensity(most=2, period_s=600.0)))
    struck = set()

    def strike(number):
        if number % 5 == 4 and number not in struck:
            struck.add(number)
            kill(1)(world)

    world.step_hook = strike
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.SPARE, Rung.SPARE, Rung.STOP]
    assert "seat 1: 'process killed' more than 2 times within 600 s" in world.ended.reason
    assert world.ended.exit_code == 137


def test_facts_before_the_beginning_and_after_the_end_change_nothing():
    state = initial(Settings(seats=2))
    for fact in (Tick(), ProcReady(proc=1, replicated=True, settled=True)):
        assert step(state, fact, 1.0) == (state, ())
    world = world_of(2).run()
    for fact in (Begun(), Tick(), ProcReady(proc=1, replicated=True, settled=True)):
        assert step(world.state, fact, 999.0) == (world.state, ())


def test_settings_that_cannot_be_met_are_refused():
    with pytest.raises(ValueError, match="expected seats >= 1"):
        initial(Settings(seats=0))


def test_a_plain_script_that_fails_at_the_same_line_again_is_not_called_deterministic():
    world = world_of(2, plain=True)
    crash = Crash(error="RuntimeError", message="connection closed", where="train.py:9", step=-1)
    world.started_hook = lambda sim: world.after(1, lambda: world.exit(sim.number, code=1, crash=crash))
    world.run()
    assert [e.rung for e in world.events(Decided)] == [Rung.COLD_RESTART] * 3 + [Rung.STOP]


def test_the_first_new_step_counts_from_its_close_and_not_from_when_it_is_told():
    """On several nodes a beat tells of it, up to a second later: recoveries took longer than they did."""
    at_once, late = (world_of(3, 1, at_step={10: kill(1)}) for _ in range(2))
    feed = late.feed
    late.feed = lambda fact: feed(replace(fact, ago_s=0.05) if isinstance(fact, StepDone) else fact)
    (quick,), (slow,) = (world.run().events(IncidentClosed) for world in (at_once, late))
    assert slow.first_step_s == pytest.approx(quick.first_step_s - 0.05)
    assert late.events(NormalAgain)[0].after_s == slow.first_step_s


def test_a_step_that_was_closed_before_the_loss_and_is_told_late_does_not_close_the_incident():
    world = world_of(2, 1, at_step={10: kill(1)})
    world.decision_hook = on(GoOn, 2, lambda: world.feed(StepDone(step=9, duration_s=0.1)))
    world.steps_done.clear()
    feed = world.feed
    world.feed = lambda fact: None if fact == StepDone(step=9, duration_s=0.1) and world.going == 1 else feed(fact)
    world.run()
    (closed,) = world.events(IncidentClosed)
    go_on_s = next(at_s for at_s, d in world.decisions if isinstance(d, GoOn) and d.term == 2)
    opened_s = world.events(PhaseBegan)[0].at_mono_s
    assert closed.first_step_s > go_on_s - opened_s, "closed by step 10, not by the late step 9"
