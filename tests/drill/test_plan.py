import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.drill.fault import ANY_INCARNATION, Kind, Moment
from closeranks.drill.plan import PlanError, parse, random_plan, resolve

RUN = '[run]\ncommand = ["train.py", "--steps", "40"]\nseats = 4\n'


def plan_with(fault: str, run: str = RUN):
    return parse(f"{run}\n[[fault]]\n{fault}", "plan.toml")


def problem_of(text: str) -> str:
    with pytest.raises(PlanError) as caught:
        parse(text, "plan.toml")
    return str(caught.value)


def test_what_is_left_out_has_the_strict_default():
    plan = parse(RUN, "plan.toml")
    assert (plan.run.spares, plan.expect.equality, plan.expect.exit_code, plan.expect.steps_lost_max) == (
        1,
        "bitwise",
        0,
        0,
    )


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_known_one():
    text = RUN + '\n[[fault]]\nkind = "kill"\nseat = 1\nmoment = "apply"\n[[fault]]\nkind = "kill"\nsaet = 2\n'
    assert problem_of(text) == 'plan.toml line 11: fault 2.saet: unknown key; did you mean "seat"?'


def test_an_unknown_table_is_refused_with_the_nearest_known_one():
    message = problem_of(RUN + "\n[expects]\nexit_code = 0\n")
    assert message == 'plan.toml line 5: expects: unknown table; did you mean "expect"?'


def test_a_key_that_resembles_none_lists_the_known_ones():
    assert "known: command, seats, spares, timeout_s" in problem_of(RUN + "zzz = 1\n")


def test_a_wrong_kind_names_the_nearest_one():
    message = problem_of(RUN + '\n[[fault]]\nseat = 1\nmoment = "apply"\nkind = "kil"\n')
    assert message == 'plan.toml line 8: fault 1.kind: no such kind: "kil"; did you mean "kill"?'


def test_a_wrong_type_says_what_was_expected_and_found():
    message = problem_of('[run]\ncommand = ["a.py"]\nseats = "four"\n')
    assert message == "plan.toml line 3: run.seats: expected `int`, got `str`"


def test_a_missing_command_is_named():
    assert problem_of("[run]\nseats = 2\n").startswith("plan.toml line 1: run: object missing required field `command`")
    assert "expected a script and its arguments" in problem_of("[run]\ncommand = []\n")


def test_text_that_is_no_toml_keeps_the_line_of_the_parser():
    assert "line 2" in problem_of("[run]\ncommand = \n")


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ('kind = "kill"\nseat = 4\nmoment = "apply"', "fault 1.seat: expected a seat from 0 to 3, got 4"),
        ('kind = "kill"\nseat = 0\nmoment = "apply"\nstep = [9, 3]', "first <= last, got (9, 3)"),
        ('kind = "kill"\nseat = 0\nmoment = "apply"\nwith_seats = [0]', "expected other seats than 0"),
        ('kind = "kill"\nseat = 0\nmoment = "apply"\nincarnation = 0', 'or more, or "any", got 0'),
        ('kind = "kill"\nseat = 0', "exactly one of moment and during"),
        (
            'kind = "kill"\nseat = 0\nmoment = "apply"\nduring = "recovery of another"',
            "exactly one of moment and during",
        ),
        ('kind = "gil"\nseat = 0\nmoment = "apply"\nafter_ms = 5', "gil strikes in the training thread"),
        ('kind = "pause"\nseat = 0\nmoment = "apply"\nfor_s = 0', "expected more than 0 seconds"),
    ],
)
def test_what_cannot_be_struck_is_refused(fault, problem):
    with pytest.raises(PlanError) as caught:
        plan_with(fault)
    assert problem in str(caught.value)


def test_a_run_that_is_expected_to_fail_cannot_be_compared():
    assert 'set equality = "none"' in problem_of(RUN + "\n[expect]\nexit_code = 7\n")


def test_a_plain_fault_resolves_to_itself():
    (fault,) = resolve(plan_with('kind = "exception"\nseat = 2\nstep = 7\nmoment = "backward"'), seed=5)
    assert (fault.kind, fault.seat, fault.step, fault.moment) == (Kind.EXCEPTION, 2, 7, Moment.BACKWARD)
    assert (fault.incarnation, fault.volley) == (1, 0)
    assert str(fault) == "exception in backward of step 7, seat 2"


def test_during_the_recovery_of_another_is_the_moment_recovering():
    (fault,) = resolve(plan_with('kind = "kill"\nseat = 2\nstep = 7\nduring = "recovery of another"'), seed=0)
    assert fault.moment is Moment.RECOVERING
    assert fault.due("recovering", 9)
    assert not fault.due("recovering", 6)


def test_seats_struck_together_share_step_moment_and_volley():
    faults = resolve(plan_with('kind = "kill"\nseat = "random"\nstep = [2, 30]\nmoment = "apply"\nwith_seats = [1]'), 3)
    first, second = faults
    assert second.seat == 1 != first.seat
    assert (first.step, first.moment, first.volley) == (second.step, second.moment, second.volley)
    assert first.volley > 0


def test_any_incarnation_is_kept():
    (fault,) = resolve(plan_with('kind = "kill"\nseat = 2\nmoment = "idle"\nincarnation = "any"'), seed=0)
    assert fault.incarnation == ANY_INCARNATION


DRAWN = 'kind = "kill"\nseat = "random"\nstep = [3, 30]\nmoment = "forward"'


@given(st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_faults_within_their_ranges(seed):
    plan = plan_with(DRAWN)
    (fault,) = resolve(plan, seed)
    assert (fault,) == resolve(plan, seed)
    assert 0 <= fault.seat < 4
    assert 3 <= fault.step <= 30


def test_editing_one_fault_leaves_what_is_drawn_for_the_others_alone():
    one = plan_with(DRAWN + f"\n[[fault]]\n{DRAWN}")
    other = plan_with(DRAWN.replace("30", "29") + f"\n[[fault]]\n{DRAWN}")
    assert resolve(one, 11)[1] == resolve(other, 11)[1]


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 60))
def test_a_random_plan_is_a_function_of_its_seed_and_fits_the_run(seed, seats, steps):
    plan = random_plan(seed, seats, steps)
    assert plan == random_plan(seed, seats, steps)
    (fault,) = resolve(plan, seed)
    assert fault.seat < seats
    assert fault.step < steps


def test_random_plans_reach_every_moment_of_a_step():
    drawn = {resolve(random_plan(seed, 4, 20), seed)[0].moment for seed in range(60)}
    assert drawn == {Moment.FORWARD, Moment.BACKWARD, Moment.COLLECTIVE, Moment.APPLY, Moment.BETWEEN}


def test_a_run_may_save_and_says_how_often():
    text = '[run]\ncommand = ["train.py"]\nsave_every = "{}"\n'
    assert parse(text.format("10s"), "plan.toml").run.save_every == "10s"
    assert "save_every: expected steps" in problem_of(text.format("often"))


def test_of_runs_that_save_every_second_random_drill_kills_all_seats():
    plans = [random_plan(seed, 3, 20, saves=True) for seed in range(40)]
    everyone = [plan for plan in plans if len({plan.fault[0].seat, *plan.fault[0].with_seats}) == 3]
    assert 10 <= len(everyone) <= 30
    assert all(plan.fault[0].kind is Kind.KILL for plan in everyone)
    assert all(plan.expect.steps_lost_max == 20 for plan in plans)
