"""``closeranks run`` from outside: what a person gives, sees, and gets back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from closeranks.cli.run import main
from closeranks.events import HookRan, IncidentOpened, ProcessStarted, RunEnded, StackCaptured, TermBegan
from real_run import eventually, gone

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nothing.py"], ["nothing.py", "no such file", "-m"]),
        (["folder"], ["folder", "it is a folder"]),
        (["--spare", "1", "train.py"], ["--spare", "did you mean --spares?"]),
        (["--nproc-per-node", "0", "train.py"], ["at least 1, got 0"]),
        (["--max-restarts", "-1", "train.py"], ["at least 0, got -1"]),
        (["--run-dir", "folder", "train.py"], ["expected an empty folder", "'file'", "--run-dir"]),
        (["--run-dir", "train.py", "train.py"], ["--run-dir"]),
        (["-m", "nothing.at_all"], ["module nothing.at_all", "'nothing'", "leave -m out"]),
        (["--no-python", "./nothing"], ["command ./nothing", "not found, or not executable"]),
        ([], ["no script given"]),
    ],
)
def test_bad_input_is_refused_with_the_way_out_and_leaves_nothing(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert message.startswith("closeranks run: ")
    assert all(word in message for word in words), message
    assert sorted(tmp_path.rglob("*")) == before


def test_help_shows_examples(capsys):
    assert main(["--help"]) == 0
    assert "closeranks run --nproc-per-node 4 --spares 1 train.py --lr 3e-4" in capsys.readouterr().out


def test_the_guardian_imports_no_torch():
    code = "import sys, closeranks.cli.run; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)


GROUP = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
group = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"group {group} sum {total.item():g} {sys.argv[1:]}")
if group == "0" and dist.get_rank() == 1:
    raise ValueError("first try")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.process
def test_a_script_without_the_library_is_restarted_as_a_group_under_a_new_term(start_run, tmp_path):
    hook = f'echo "$CLOSERANKS_INCIDENT $CLOSERANKS_INCIDENT_EDGE" >> {tmp_path}/told'
    run = start_run(GROUP, "--nproc-per-node", "2", "--on-incident", hook, arguments=("--spares", "7"))
    code, output = run.end(60)
    assert code == 0, output
    assert "[s1.1] group 0 sum 3 ['--spares', '7']" in output
    assert "[s0.2] group 1 sum 3 ['--spares', '7']" in output
    assert f"closeranks: exit code 0; all about it: closeranks report {run.folder}" in output
    assert len(run.events(ProcessStarted)) == 4
    assert [event.seats for event in run.events(IncidentOpened)] == [(1,)]
    assert (run.folder / "logs" / "p1.out").read_text() == "group 0 sum 3 ['--spares', '7']\n"
    assert [(event.edge, event.problem) for event in run.events(HookRan)] == [("opened", ""), ("closed", "")]
    assert eventually(lambda: (tmp_path / "told").read_text() == "1 opened\n1 closed\n", 30)
    assert run.events(TermBegan) == []
    assert (run.folder / "journal.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.process
@pytest.mark.parametrize("code", [0, 3])
def test_a_run_whose_output_cannot_be_written_goes_on_and_keeps_its_code(tmp_path, code):
    """Started with its output on a full disk it did not begin; the interpreter made 120 of the code of such a run."""
    script, main = f"import sys; print('hello'); sys.exit({code})", "from closeranks.cli.main import main; main()"
    words = ["--nproc-per-node", "1", "--max-restarts", "0", "--start", "spawn", "--run-dir", str(tmp_path / "run")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", main, "run", *words, "--no-python", sys.executable, "-c", script],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=full,
            stderr=full,
            timeout=60,
            check=False,
        )
    assert done.returncode == code
    assert (tmp_path / "run" / "logs" / "p1.out").read_text() == "hello\n"


@pytest.mark.process
def test_a_run_that_fails_ends_with_the_first_traceback_and_the_code(start_run):
    script = "import sys\nprint('x' * 10_000, '\\x1b[2J')\nprint('why', file=sys.stderr)\nraise KeyError('gone')\n"
    run = start_run(script, "--max-restarts", "0", "--start", "spawn")
    code, output = run.end(60)
    assert code == 1
    assert "\x1b" not in output
    *_, first, second, third, fourth, reason, folder = output.splitlines()
    assert first == "Traceback (most recent call last):"
    assert 'script0.py", line 4, in <module>' in second
    assert (third.strip(), fourth) == ("raise KeyError('gone')", "KeyError: 'gone'")
    assert reason.startswith("closeranks: run failed: ")
    assert str(run.folder) in folder
    assert '"exit_code": 1' in (run.folder / "run.json").read_text()


SILENT = "import threading\ndef wait_for_nothing():\n    threading.Event().wait()\nwait_for_nothing()\n"


@pytest.mark.process
def test_a_script_that_falls_silent_is_ended_with_its_stacks_kept(start_run):
    run = start_run(SILENT, "--max-restarts", "0", "--silence", "4", "--start", "spawn")
    code, output = run.end(60)
    assert code != 0, output
    assert "no process printed anything" in output
    (captured,) = {event.summary for event in run.events(StackCaptured)}
    assert "in wait" in captured
    assert "in wait_for_nothing" in (run.folder / "stacks" / "p1.txt").read_text()


STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.process
@pytest.mark.parametrize(("signals", "grace", "begin"), [(1, "0.5", "fork"), (2, "60", "spawn")])
def test_ctrl_c_ends_everyone_after_the_grace_period_or_at_once_when_repeated(start_run, signals, grace, begin):
    run = start_run(STUBBORN, "--nproc-per-node", "2", "--grace", grace, "--start", begin)
    pids = [event.pid for event in run.wait_for(ProcessStarted, 2)]
    logs = [run.folder / "logs" / f"p{proc}.out" for proc in (1, 2)]
    assert eventually(lambda: all(log.exists() and log.read_text() == "up\n" for log in logs), 60)
    for _ in range(signals):
        run.process.send_signal(signal.SIGINT)
        eventually(lambda: '"SignalReceived"' in (run.folder / "journal.jsonl").read_text(), 30)
    code, output = run.end(20)
    assert code == 128 + signal.SIGINT, output
    assert all(map(gone, pids))
    assert run.events(RunEnded)[0].outcome == "stopped"
