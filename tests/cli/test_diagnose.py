import gzip
import json

import pytest
from typer.testing import CliRunner

from closeranks.cli.main import app_for
from closeranks.gather import sources

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


def test_too_many_files_are_refused(job, monkeypatch):
    monkeypatch.setattr(sources, "FILES_MAX", 1)
    assert "more than 1 files" in invoke(job).stderr
