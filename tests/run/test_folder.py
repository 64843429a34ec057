from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from closeranks.run import folder as folder_module
from closeranks.run.folder import FolderError, claim, read_run_file, write_run_file
from closeranks.run.guardian import _settled, _supervisor_lost
from closeranks.run.options import RunOptions, Target

OPTIONS = RunOptions(target="train.py")


def test_a_claimed_folder_is_private_and_says_what_was_asked_for(tmp_path):
    folder = claim(tmp_path / "a" / "b", OPTIONS, ("closeranks", "run", "train.py"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "run.json").stat().st_mode & 0o777 == 0o600
    file = read_run_file(folder)
    assert (file.run, file.options, file.outcome) == ("b", OPTIONS, "running")


def test_a_folder_that_holds_a_run_is_never_overwritten(tmp_path):
    claim(tmp_path / "r", OPTIONS, ())
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    with pytest.raises(FolderError, match="never overwritten"):
        claim(tmp_path / "r", OPTIONS, ())
    assert before == {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}


def test_a_folder_with_other_files_is_not_used(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(FolderError, match=r"thesis\.tex"):
        claim(tmp_path, OPTIONS, ())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderError, match="--run-dir"):
        claim(tmp_path / "file", OPTIONS, ())
    with pytest.raises(FolderError, match="--run-dir"):
        claim(tmp_path / "file" / "below", OPTIONS, ())


def test_the_run_file_is_replaced_as_a_whole(tmp_path):
    folder = claim(tmp_path / "r", OPTIONS, ())
    file = read_run_file(folder)
    write_run_file(folder, file.__replace__(outcome="completed") if hasattr(file, "__replace__") else file)
    assert not (folder / ".run.json").exists()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (OPTIONS, 139),
        (RunOptions(target="train.py", nnodes=2, rdzv_endpoint="n0:1"), 139),  # the job ends with it
        (RunOptions(target="train.py", nnodes=2, node_rank=1, rdzv_endpoint="n0:1"), 75),
        (RunOptions(target="train.py", nnodes=2, authority="etcd://e:1"), 75),
    ],
)
def test_a_lost_supervisor_of_one_of_several_nodes_is_no_verdict_on_the_job(tmp_path, capsys, options, code):
    folder = claim(tmp_path / "r", options, ())
    assert _supervisor_lost(folder, 11) == read_run_file(folder).exit_code == code
    assert "ended by signal 11" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["write", "mkdir", "room"])
def test_a_folder_that_could_not_be_furnished_is_given_back(tmp_path, monkeypatch, what):
    """It kept the beginning of ``run.json``, and each later start was told that it held a run."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        if what == "write":
            disk.setattr(folder_module, "_encode", full)
        elif what == "mkdir":
            really = Path.mkdir
            disk.setattr(Path, "mkdir", lambda path, **how: (full if path.name == "stacks" else really)(path, **how))
        else:
            disk.setattr(folder_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
        with pytest.raises(FolderError, match=r"No space left on device|1048576 bytes free"):
            claim(tmp_path / "r", OPTIONS, ())
    claim(tmp_path / "r", OPTIONS, ())


@pytest.mark.parametrize(("code", "outcome"), [(0, "completed"), (143, "stopped"), (1, "failed")])
def test_where_the_supervisor_could_not_write_down_the_end_the_guardian_does(tmp_path, code, outcome):
    folder = claim(tmp_path / "r", OPTIONS, ())
    assert _settled(folder, code) == code
    file = read_run_file(folder)
    assert (file.outcome, file.exit_code) == (outcome, code)
    assert "could not write down why" in file.reason


def test_what_the_supervisor_wrote_of_the_end_stands(tmp_path):
    folder = claim(tmp_path / "r", OPTIONS, ())
    told = msgspec.structs.replace(read_run_file(folder), outcome="failed", exit_code=3, reason="seat 1 was lost")
    write_run_file(folder, told)
    assert _settled(folder, 3) == 3
    assert read_run_file(folder) == told
    (folder / "run.json").write_text("{")
    assert _settled(folder, 3) == 3


@pytest.mark.process
def test_a_journal_that_cannot_be_begun_is_told_in_a_sentence(tmp_path):
    """It was a traceback, and run.json said for ever that the run was running."""
    folder = claim(tmp_path / "r", RunOptions(target="true", kind=Target.COMMAND), ())
    (folder / "journal.jsonl").mkdir()
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from closeranks.run.guardian import guard\n"
        "sys.exit(guard(Path(sys.argv[1]), 1))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    problem = f"{folder}/journal.jsonl: cannot be opened for appending: Is a directory"
    assert done.stderr == f"closeranks: {problem}; the run did not begin\n"
    assert (read_run_file(folder).outcome, read_run_file(folder).exit_code) == ("failed", 2)
