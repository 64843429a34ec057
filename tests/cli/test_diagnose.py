import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import closeranks
from closeranks.cli.main import app_for
from closeranks.decide.node_records import Failed
from closeranks.gather import sources
from closeranks.run.node_history import NodeHistory
from real_run import eventually

FULL = 'Traceback (most recent call last):\n  File "train.py", line 3\nOSError: [Errno 28] No space left on device\n'


def invoke(*arguments):
    arguments = ["diagnose", *map(str, arguments)]
    return CliRunner().invoke(app_for(arguments), arguments)


@pytest.fixture
def job(tmp_path):
    for rank, text in enumerate(["RuntimeError: Connection reset by peer\n", FULL]):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
    return tmp_path


def test_the_verdict_comes_first_then_its_proof_then_the_timeline(job):
    done = invoke(job)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("VERDICT: disk full  (confidence 0.9")
    assert lines[2] == "  culprit: rank 1"
    assert "stderr.log:3 [rank 1]: OSError: [Errno 28]" in lines[lines.index("because") + 1]
    assert lines.index("because") < lines.index("what to do") < lines.index("timeline")
    assert "\x1b" not in done.stdout


def test_json_has_a_schema_and_the_same_verdict(job):
    done = invoke(job, "--json")
    told = json.loads(done.stdout)
    assert told["schema"] == 1
    assert (told["verdict"]["fault"], told["verdict"]["culprit"]["rank"]) == ("disk full", 1)
    assert told["verdict"]["proof"][0]["place"]["line"] == 3
    assert [item["rule"] for item in told["timeline"]] == ["peer-gone", "disk-full"]
    assert told["files"] == 2


def test_what_is_not_known_has_a_status_of_its_own(tmp_path):
    (tmp_path / "a.log").write_text("all is well\n")
    done = invoke(tmp_path)
    assert done.exit_code == 3
    assert done.stdout.startswith("VERDICT: unknown\n")


def test_a_kernel_log_turns_a_kill_into_a_lack_of_memory(tmp_path):
    (tmp_path / "slurm-1.out").write_text("srun: error: node7: task 3: Exited with exit code 137\n")
    (tmp_path / "k.txt").write_text("[1.5] Out of memory: Killed process 4711 (python)\n")
    log = tmp_path / "slurm-1.out"
    assert "VERDICT: process killed" in invoke(log).stdout
    assert "VERDICT: out-of-memory kill" in invoke(log, "--kernel-log", tmp_path / "k.txt").stdout


def test_what_struck_a_node_before_makes_a_passing_fault_a_lasting_one(tmp_path):
    log, past = tmp_path / "node7.log", tmp_path / "nodes.jsonl"
    log.write_text("mlx5_core 0000:3b:00.0 eth0: Link is Down\n")
    assert "transient" in invoke(log, "--node-history", past).stdout
    history = NodeHistory(past)
    for incident in range(3):
        failed = Failed(host="node7", wall_s=1.0 + incident, run="r", incident=incident, fault="network loss")
        history.add(failed)
    assert "permanent" in invoke(log, "--node-history", past).stdout


def test_packed_logs_and_recordings_are_read(tmp_path):
    from tests.gather.test_dumps import RECORDINGS

    (tmp_path / "rank1.log.gz").write_bytes(gzip.compress(FULL.encode()))
    assert "VERDICT: disk full" in invoke(tmp_path / "rank1.log.gz").stdout
    done = invoke("--flight-recorder", RECORDINGS)
    assert done.exit_code == 0
    assert "mismatched collective" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("/absent",), ("--kernel-log", "/absent"), ("--flight-recorder", "/absent")])
def test_bad_input_is_said_and_has_its_own_status(arguments):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert "closeranks diagnose: " in done.stderr


def test_what_holds_no_log_is_said_and_not_called_unknown(tmp_path):
    (tmp_path / "rank0.log").touch()
    assert "not a byte in them" in invoke(tmp_path).stderr
    (tmp_path / "rank1.log").write_bytes(bytes(range(256)) * 9)
    assert "rank1.log: does not look like text" in invoke(tmp_path).stderr
    (tmp_path / "none").mkdir()
    assert "no recording of collectives" in invoke("--flight-recorder", tmp_path / "none").stderr
    assert "nothing is remembered" in invoke(tmp_path, "--node-history", tmp_path / "absent").stderr


def test_a_file_that_cannot_be_read_does_not_hide_the_others(job):
    (job / "rank9.log.gz").write_bytes(gzip.compress(FULL.encode() * 9)[:40])
    done = invoke(job)
    assert done.exit_code == 0
    assert "damaged or cut off" in done.stderr
    (job / "only.gz").write_bytes(b"\x1f\x8b\x08garbage")
    assert invoke(job / "only.gz").exit_code == 2


def test_an_interrupt_ends_without_a_verdict_and_without_a_traceback(job, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("closeranks.gather.collecting.pieces", interrupted)
    done = invoke(job)
    assert done.exit_code == 130
    assert "interrupted; no verdict" in done.stderr


def _when_read(pipe):
    """The writing end, once somebody reads."""
    ends = []

    def opened():
        try:
            ends.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads yet
            return False
        return True

    assert eventually(opened, within_s=60)
    return ends[0]


@pytest.mark.process
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_pipe_is_read_and_ctrl_c_ends_the_waiting_for_it(tmp_path, interrupted):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", "from closeranks.cli.main import main; main()", "diagnose", str(pipe)]
    environment = os.environ | {"PYTHONPATH": str(Path(closeranks.__file__).parents[1])}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        writer = _when_read(pipe)
        os.write(writer, FULL.encode())
        if interrupted:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
        os.close(writer)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == (130 if interrupted else 0)
    assert "Traceback" not in stderr
    assert stdout.startswith("" if interrupted else "VERDICT: disk full")


def test_too_many_files_are_refused(job, monkeypatch):
    monkeypatch.setattr(sources, "FILES_MAX", 1)
    assert "more than 1 files" in invoke(job).stderr
