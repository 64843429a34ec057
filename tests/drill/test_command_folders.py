"""What ``closeranks drill`` leaves of the folder that it made for its runs."""

from __future__ import annotations

import pytest

from closeranks.cli import drill
from closeranks.drill.verdict import Evidence


@pytest.fixture
def invoke(of_one_command):
    program = of_one_command(drill.register)
    return lambda *words: program("drill", *words)


def runner_that(undisturbed):
    class Runner:
        def __init__(self, folder, _progress):
            self.folder = folder

        def undisturbed(self, _run):
            (self.folder / "undisturbed").mkdir()
            return undisturbed()

    return Runner


def test_cells_that_are_not_known_leave_no_folder(invoke, tmp_path):
    result = invoke("--matrix", "--cells", "no-such-row")
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []
    assert "kept" not in result.output


def test_a_command_that_fails_when_left_alone_is_kept_and_where_is_said(invoke, monkeypatch, tmp_path):
    failed = Evidence(exit_code=1, records=(), finals={})
    monkeypatch.setattr(drill, "Runner", runner_that(lambda: failed))
    result = invoke("--random", "1", "--", "train.py")
    (folder,) = tmp_path.iterdir()
    assert result.exit_code == 3
    assert f"runs are kept in {folder}" in result.output


def test_who_interrupts_a_drill_hears_where_its_runs_are(invoke, monkeypatch, tmp_path):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(drill, "Runner", runner_that(interrupted))
    result = invoke("--random", "1", "--", "train.py")
    (folder,) = tmp_path.iterdir()
    assert f"runs are kept in {folder}" in result.output
