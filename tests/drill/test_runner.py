import os
import signal
import subprocess
import sys

import msgspec
import pytest

from closeranks.drill import runner as runner_module
from closeranks.drill.fault import Fault, Kind, Moment
from closeranks.drill.plan import RunSpec
from closeranks.drill.runner import Runner, command_line, finals_of
from closeranks.drill.verdict import Final

FAULT = Fault(kind=Kind.KILL, seat=1, step=2, moment=Moment.BACKWARD)
LAUNCHED = """
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
(folder / "final").mkdir(parents=True)
(folder / "final" / "seat1.json").write_text(json.dumps({"step": 3, "digest": "d", "local": "l"}))
(folder / "final" / "seat2.json").write_text("{")
print("plan:", os.environ.get("CLOSERANKS_DRILL"))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def launcher(monkeypatch):
    def launch(script=LAUNCHED):
        monkeypatch.setattr(
            runner_module, "command_line", lambda run, folder: [sys.executable, "-c", script, str(folder), *run.command]
        )

    launch()
    return launch


def test_the_command_line_is_what_a_user_would_type(tmp_path):
    words = command_line(RunSpec(command=("train.py", "--lr", "1"), seats=4, spares=2), tmp_path / "run")
    assert words[:4] == [sys.executable, "-m", "closeranks", "run"]
    sizes = ["--nproc-per-node", "4", "--spares", "2"]
    assert words[4:] == [*sizes, "--run-dir", str(tmp_path / "run"), "train.py", "--lr", "1"]


@pytest.mark.process
def test_the_undisturbed_run_knows_no_faults_and_is_made_once_for_each_command(launcher, monkeypatch, tmp_path):
    monkeypatch.setenv("CLOSERANKS_DRILL", "of somebody else")
    runner = Runner(tmp_path / "runs")
    run = RunSpec(command=("0",))
    evidence = runner.undisturbed(run)
    assert evidence is runner.undisturbed(RunSpec(command=("0",)))
    assert evidence.output == "plan: None\n"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["01-undisturbed"]


@pytest.mark.process
def test_a_drilled_run_is_removed_and_the_undisturbed_one_stays(launcher, tmp_path):
    runner = Runner(tmp_path / "runs")
    runner.undisturbed(RunSpec(command=("0",)))
    runner.discard_drilled()  # there is none yet
    runner.drilled(RunSpec(command=("0",)), (FAULT,))
    runner.discard_drilled()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["01-undisturbed"]


@pytest.mark.process
def test_a_drilled_run_gets_its_faults_and_hands_back_how_it_ended(launcher, tmp_path):
    evidence = Runner(tmp_path / "runs").drilled(RunSpec(command=("7",)), (FAULT,))
    path = tmp_path / "runs" / "01-drilled" / "faults.json"
    assert evidence.exit_code == 7
    assert evidence.output == f"plan: {path}\n"
    assert msgspec.json.decode(path.read_bytes(), type=tuple[Fault, ...]) == (FAULT,)
    assert path.stat().st_mode & 0o077 == 0


def test_final_states_that_cannot_be_read_count_as_absent(tmp_path):
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "seat1.json").write_text('{"step": 3, "digest": "d", "local": "l"}')
    (tmp_path / "final" / "seat2.json").write_text("{")
    (tmp_path / "final" / "seats.json").write_text("{}")
    assert finals_of(tmp_path) == {1: Final(3, "d", "l")}


@pytest.mark.process
def test_a_run_that_does_not_end_in_time_is_ended(launcher, tmp_path):
    launcher("import os, signal; print(os.getpid(), flush=True); signal.pause()")
    told = []
    runner = Runner(tmp_path / "runs", lambda folder, spent_s: told.append((folder.parent.name, spent_s)))
    evidence = runner.drilled(RunSpec(command=("x",), timeout_s=5.0), ())
    assert evidence.exit_code is None
    assert told[0][0] == "01-drilled"
    with pytest.raises(ProcessLookupError):
        os.kill(int(evidence.output), 0)


@pytest.mark.process
def test_a_run_that_ignores_the_request_to_end_is_killed(monkeypatch):
    monkeypatch.setattr(runner_module, "_GRACE_S", 0.2)
    ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    script = f"import signal; {ignores}; print(1, flush=True); signal.pause(); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with process:
        process.stdout.readline()
        runner_module.end(process)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.process
def test_a_visible_run_prints_where_we_do(launcher, tmp_path, capfd):
    evidence = Runner(tmp_path / "runs", visible=True).undisturbed(RunSpec(command=("0",)))
    assert evidence.output == ""
    assert capfd.readouterr().out == "plan: None\n"
