"""``recordings`` holds dumps that torch 2.13 made with gloo: rank 1 left (pickles), rank 1 called barrier (JSON)."""

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest

from closeranks.diagnose.flight import compare
from closeranks.diagnose.judge import judge
from closeranks.gather.dumps import read_recordings

RECORDINGS = Path(__file__).parent / "recordings"


def verdict_on(folder):
    recordings, problems = read_recordings(folder)
    assert problems == []
    return judge(compare(recordings))


def copied(tmp_path, pattern, name="{}"):
    for path in sorted(RECORDINGS.glob(pattern)):
        shutil.copy(path, tmp_path / name.format(path.name))
    return tmp_path


def test_real_pickles_name_the_rank_that_left(tmp_path):
    verdict = verdict_on(copied(tmp_path, "missing_*"))
    assert (verdict.fault, verdict.culprit.rank) == ("collective timeout", 1)


def test_real_json_names_the_rank_that_called_another_collective(tmp_path):
    verdict = verdict_on(copied(tmp_path, "op_*"))
    assert (verdict.fault, verdict.culprit.rank) == ("mismatched collective", 1)


@pytest.mark.parametrize("form", ["nccl_trace_{}", "dump.{}.bak", "2026-11-29 {} (copy)"])
def test_odd_file_names_do_not_matter(tmp_path, form):
    assert verdict_on(copied(tmp_path, "missing_*", form)).culprit.rank == 1


def test_names_without_a_rank_are_numbered_by_their_last_number(tmp_path):
    for rank, path in enumerate(sorted(RECORDINGS.glob("missing_*"))):
        shutil.copy(path, tmp_path / f"trace-{rank}")
    assert verdict_on(tmp_path).culprit.rank == 1


class Evil:
    def __reduce__(self):
        return (print, ("owned",))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (pickle.dumps({"entries": [Evil()]}), "builtins.print"),
        (pickle.dumps({"entries": {1, 2}}, protocol=0), "builtins.set|plain"),
        (pickle.dumps([1, 2]), "expected a table, got list"),
        (pickle.dumps({"entries": 1}), "expected a list"),
        (b"\x80\x04garbage", "neither JSON nor a pickle"),
        (b'{"entries": [', "neither JSON nor a pickle"),
        (b'{"a":' * 100_000, "neither JSON|nested"),
        (b"", "neither JSON nor a pickle"),
        (json.dumps({"entries": [{"collective_seq_id": "one"}]}).encode(), "no number"),
    ],
)
def test_whatever_is_no_recording_is_a_problem_and_runs_nothing(tmp_path, capsys, data, problem):
    copied(tmp_path, "missing_*")
    (tmp_path / "other").write_bytes(data)
    recordings, problems = read_recordings(tmp_path)
    assert len(recordings) == 3
    assert len(problems) == 1
    assert re.search(problem, problems[0])
    assert "owned" not in capsys.readouterr().out
