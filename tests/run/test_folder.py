from __future__ import annotations

import pytest

from closeranks.run.folder import FolderError, claim, read_run_file, write_run_file
from closeranks.run.guardian import _supervisor_lost
from closeranks.run.options import RunOptions

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
