import json

import pytest
import typer
from typer.testing import CliRunner

from closeranks.cli import drill as command
from closeranks.drill.verdict import Evidence, Final
from closeranks.events import FaultInjected, IncidentClosed, IncidentOpened, Record, StepClosed

PLAN = '[run]\ncommand = ["train.py"]\n[[fault]]\nkind = "kill"\nseat = 1\nmoment = "apply"\nstep = 1\n'
FINALS = {0: Final(2, "d", "l"), 1: Final(2, "d", "m")}


def records(*events):
    return tuple(Record(seq=0, wall_s=0.0, mono_s=0.0, run="r", node="n", term=1, event=event) for event in events)


class FakeRunner:
    """Every fault strikes; ``finals`` decides how the drilled run ends."""

    finals = FINALS
    strikes = True
    undisturbed_code = 0

    def __init__(self, folder, _progress):
        folder.mkdir(exist_ok=True)

    def undisturbed(self, _run):
        steps = [StepClosed(step=step, began_mono_s=0, closed_mono_s=1, losses=()) for step in range(2)]
        return Evidence(exit_code=self.undisturbed_code, records=records(*steps), finals=FINALS)

    def drilled(self, _run, faults):
        steps = [StepClosed(step=step, began_mono_s=0, closed_mono_s=1, losses=()) for step in range(2)]
        struck = [FaultInjected(fault=f.kind, seat=f.seat, proc=1, step=f.step, moment=f.moment) for f in faults]
        opened = IncidentOpened(incident=1, seats=(1,), summary="s")
        closed = IncidentClosed(incident=1, outcome="recovered", steps_lost=0, first_step_s=0.25)
        events = [*steps, *(struck if self.strikes else []), opened, closed]
        return Evidence(exit_code=0, records=records(*events), finals=self.finals)


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)
    app = typer.Typer()
    app.callback()(lambda: None)
    command.register(app)

    def run(*words, **changes):
        monkeypatch.setattr(command, "Runner", type("Runner", (FakeRunner,), changes))
        return CliRunner().invoke(app, ["drill", *words])

    return run


@pytest.mark.parametrize(
    ("changes", "status"),
    [({}, 0), ({"finals": {0: FINALS[0]}}, 1), ({"strikes": False}, 3), ({"undisturbed_code": 1}, 3)],
)
def test_the_exit_status_is_the_verdict(invoke, changes, status):
    assert invoke("plan.toml", "--keep", "runs", **changes).exit_code == status


def test_what_does_not_hold_is_printed_as_a_command_that_replays_it(invoke):
    output = invoke("plan.toml", "--seed", "5", "--keep", "runs", finals={0: FINALS[0]}).output
    assert "replay: closeranks drill plan.toml --seed 5" in output
    assert "seed 5: seat 1 left no final state" in output


def test_json_on_standard_output_holds_every_drill(invoke):
    result = invoke("plan.toml", "--repeat", "2", "--json", "--keep", "runs")
    summary = json.loads(result.stdout)
    assert summary["verdict"] == "held"
    assert [drill["seed"] for drill in summary["drills"]] == [0, 1]
    assert summary["drills"][0]["faults"] == ["kill in apply of step 1, seat 1"]


def test_random_drills_take_the_command_after_two_dashes(invoke):
    result = invoke("--random", "3", "--seed", "2", "--keep", "runs", "--json", "--", "train.py", "--steps", "2")
    assert result.exit_code == 0, result.output
    assert [drill["seed"] for drill in json.loads(result.stdout)["drills"]] == [2, 3, 4]
    assert "-- train.py --steps 2" in result.stdout


def test_a_command_that_fails_by_itself_cannot_be_drilled(invoke):
    result = invoke("--random", "1", "--keep", "runs", "--", "train.py", undisturbed_code=1)
    assert result.exit_code == 3
    assert "nothing to drill" in result.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("missing.toml",), "missing.toml: the plan cannot be read"),
        (("wrong.toml",), 'wrong.toml line 1: runn: unknown table; did you mean "run"?'),
        (("plan.toml", "more"), "expected one PLAN.toml, got 2 words"),
        (("plan.toml", "--keep", "full"), "runs are never overwritten"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_with_status_2(invoke, tmp_path, words, problem):
    (tmp_path / "wrong.toml").write_text("[runn]\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    result = invoke(*words)
    assert result.exit_code == 2
    assert problem in result.output
