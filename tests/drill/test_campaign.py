import pytest

from closeranks.drill import campaign
from closeranks.drill.campaign import carry_out, carry_out_all, drawn_at_random, planned, steps_made
from closeranks.drill.plan import RunSpec, parse, resolve
from closeranks.drill.verdict import Evidence, Final, Outcome
from closeranks.events import FaultInjected, IncidentClosed, IncidentOpened, Record, StepClosed

PLAN = parse(
    '[run]\ncommand = ["train.py"]\n[[fault]]\nkind = "kill"\nseat = "random"\nmoment = "apply"\nstep = [1, 3]\n',
    "p.toml",
)
RUN = RunSpec(command=("train.py", "--lr", "3e-4"), seats=2)


def evidence(*events, exit_code=0, output=""):
    records = tuple(
        Record(seq=i, wall_s=0.0, mono_s=0.0, run="r", node="n", term=1, event=event) for i, event in enumerate(events)
    )
    return Evidence(exit_code=exit_code, records=records, finals={0: Final(3, "d", "l")}, output=output)


class FakeRuns:
    """Runs in which every planned fault strikes and is recovered from."""

    def __init__(self, exit_code=0):
        self.exit_code = exit_code
        self.undisturbed_runs = []
        self.drilled_faults = []
        self.discarded = 0

    def undisturbed(self, run):
        self.undisturbed_runs.append(run)
        return evidence()

    def drilled(self, _run, faults):
        self.drilled_faults.append(faults)
        struck = [FaultInjected(fault=f.kind, seat=f.seat, proc=1, step=f.step, moment=f.moment) for f in faults]
        recovered = (
            IncidentOpened(incident=1, seats=(0,), summary="s"),
            IncidentClosed(incident=1, outcome="recovered", steps_lost=0, first_step_s=0.25),
        )
        return evidence(*struck, *recovered, exit_code=self.exit_code, output="starting\nValueError: no\n")

    def discard_drilled(self):
        self.discarded += 1


def test_a_held_drill_tells_what_struck_and_how_long_each_recovery_took():
    result = carry_out(FakeRuns(), planned(PLAN, "p.toml", range(4, 5))[0])
    assert (result.outcome, result.reasons, result.recovery_s) == (Outcome.HELD, (), (0.25,))
    assert result.faults == tuple(str(fault) for fault in resolve(PLAN, 4))
    assert result.replay == "closeranks drill p.toml --seed 4"


def test_a_failing_run_is_quoted_by_its_last_line():
    result = carry_out(FakeRuns(exit_code=1), planned(PLAN, "p.toml", range(1))[0])
    assert result.outcome is Outcome.BROKEN
    assert result.reasons[-1] == "the run's last line: ValueError: no"


def test_where_no_equality_is_expected_no_undisturbed_run_is_made():
    runs = FakeRuns()
    plan = parse('[run]\ncommand = ["train.py"]\n[expect]\nequality = "none"\n', "p.toml")
    carry_out(runs, planned(plan, "p.toml", range(1))[0])
    assert runs.undisturbed_runs == []


def test_each_random_drill_replays_by_a_command_of_its_own():
    drawn = drawn_at_random(RUN, steps=10, seeds=range(7, 10))
    assert [drill.seed for drill in drawn] == [7, 8, 9]
    replay = "closeranks drill --random 1 --seed 8 --nproc-per-node 2 --spares 1 --timeout 120 -- train.py --lr 3e-4"
    assert carry_out(FakeRuns(), drawn[1]).replay == replay
    assert drawn_at_random(RUN, 10, range(8, 9))[0] == drawn[1]


def test_results_are_told_one_by_one_in_order():
    told = []
    results = carry_out_all(FakeRuns(), planned(PLAN, "p.toml", range(3)), told.append, keep=False)
    assert told == results
    assert [result.seed for result in told] == [0, 1, 2]


@pytest.mark.parametrize(("exit_code", "keep", "discarded"), [(0, False, 2), (0, True, 0), (1, False, 0)])
def test_a_drill_that_held_leaves_nothing_on_the_disk_when_the_next_one_begins(exit_code, keep, discarded):
    """A night of drills filled the disk: everything was kept until its end."""
    runs = FakeRuns(exit_code)
    carry_out_all(runs, planned(PLAN, "p.toml", range(2)), lambda _: None, keep=keep)
    assert runs.discarded == discarded


def test_the_steps_of_a_run_are_counted_by_its_highest_one():
    closed = [StepClosed(step=step, began_mono_s=0, closed_mono_s=1, losses=()) for step in (0, 1, 1, 4)]
    assert steps_made(evidence(*closed)) == 5
    assert steps_made(evidence()) == 0
    assert campaign.steps_made(evidence(*closed[:1])) == 1
