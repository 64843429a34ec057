import json
from typing import ClassVar

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from closeranks.cli import drill as command
from closeranks.cli import drill_matrix
from closeranks.drill.matrix_report import drilled, empty
from closeranks.drill.score import Effect, Score
from closeranks.drill.verdict import Outcome

WRONG = Score(outcome=Outcome.BROKEN, effect=Effect.UNNOTICED, reasons=("nothing was detected",))
RIGHT = Score(outcome=Outcome.HELD, effect=Effect.RECOVERED, detected_s=0.5, kept=True)
UNKNOWN = Score(outcome=Outcome.UNKNOWN, effect=Effect.NEVER_STRUCK)


class FakeRuns:
    """Every cell has the same score; the cells that were made are written down."""

    score = RIGHT
    made: ClassVar[list[str]] = []
    discarded: ClassVar[list[str]] = []
    interrupt_at = ""

    def __init__(self, _runner, folder, seed, command):
        folder.mkdir(parents=True, exist_ok=True)
        self.seed, self.command = seed, command

    def make(self, cell, replay):
        if isinstance(cell.expected, str):
            return empty(cell)
        if cell.key == self.interrupt_at:
            raise KeyboardInterrupt
        self.made.append(cell.key)
        self.newest = cell.key
        return drilled(cell, self.score, seed=self.seed, replay=replay, took_s=1.0)

    def discard_drilled(self):
        self.discarded.append(self.newest)


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.callback()(lambda: None)
    command.register(app)

    def run(*words, **changes):
        fake = type("Fake", (FakeRuns,), {"made": []} | changes)
        monkeypatch.setattr(drill_matrix, "MatrixRuns", fake)
        result = CliRunner().invoke(app, ["drill", "--matrix", *words], env={"COLUMNS": "200"})
        return result, fake.made

    return run


@pytest.mark.parametrize(("score", "status"), [(RIGHT, 0), (WRONG, 1), (UNKNOWN, 3)])
def test_the_exit_status_is_that_of_the_worst_cell(invoke, score, status):
    result, made = invoke("--cells", "kill:forward,freeze:idle", score=score)
    assert made == ["kill:forward", "freeze:idle"]
    assert result.exit_code == status


@pytest.mark.parametrize(
    ("score", "words", "expected"),
    [(RIGHT, (), ["kill:forward", "kill:idle"]), (RIGHT, ("--keep", "m"), []), (WRONG, (), [])],
)
def test_right_cells_leave_nothing_on_the_disk_when_the_next_one_begins(invoke, score, words, expected):
    discarded = []
    invoke("--cells", "kill:forward,kill:idle", *words, score=score, discarded=discarded)
    assert discarded == expected


def test_a_wrong_cell_is_printed_with_its_reasons_and_the_command_that_makes_it_again(invoke):
    result, _ = invoke("--cells", "kill:forward", "--seed", "3", "--", "train.py", "--lr", "1", score=WRONG)
    assert "kill:forward: nothing was detected" in result.output
    assert "closeranks drill --matrix --cells kill:forward --seed 3 -- train.py --lr 1" in result.output


def test_a_word_that_names_no_cell_is_a_wrong_command_line(invoke):
    result, made = invoke("--cells", "kil")
    assert (result.exit_code, made) == (2, [])
    assert "did you mean 'kill'" in result.output


def test_what_an_earlier_matrix_made_is_not_made_again(invoke, tmp_path):
    folder = tmp_path / "m"
    invoke("--cells", "kill:forward", "--keep", str(folder))
    result, made = invoke("--cells", "kill:forward,kill:idle", "--resume", str(folder))
    assert made == ["kill:idle"]
    assert "cells: 2 right" in result.output
    _, made = invoke("--cells", "kill:forward", "--resume", str(folder), "--seed", "1")
    assert made == ["kill:forward"]  # another seed draws other faults


def test_earlier_results_that_cannot_be_read_are_refused_with_their_line(invoke, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / drill_matrix.RESULTS).write_text("{\n")
    result, made = invoke("--cells", "kill:forward", "--resume", str(tmp_path / "m"))
    assert (result.exit_code, made) == (2, [])
    assert "matrix.jsonl line 1: expected the result of a cell" in result.output


def test_an_interrupt_shows_what_is_there(invoke):
    result, made = invoke("--cells", "kill", interrupt_at="kill:optimizer")
    assert made == ["kill:start-up", "kill:forward", "kill:collective"]
    assert result.exit_code == 130
    assert "cells: 3 right" in result.output
    assert "interrupted before it" in result.output


def test_json_has_the_verdict_the_sums_and_every_cell_and_the_page_is_written(invoke, tmp_path):
    page = tmp_path / "matrix.html"
    result, _ = invoke("--cells", "kill:forward,wrong-size:idle", "--json", "--html", str(page))
    found = json.loads(result.stdout)
    assert found["verdict"] == "held"
    assert found["sums"]["coverage"] == 1.0
    by_key = {f"{cell['row']}:{cell['phase']}": cell for cell in found["cells"]}
    assert by_key["kill:forward"]["score"]["detected_s"] == 0.5
    assert by_key["wrong-size:idle"]["state"] == "not applicable"
    assert page.read_text().startswith("<!doctype html>")


def test_runs_are_kept_when_a_cell_is_wrong_and_else_only_if_asked_for(invoke, tmp_path):
    result, _ = invoke("--cells", "kill:forward", score=WRONG)
    assert "to go on: closeranks drill --matrix --resume" in result.output
    result, _ = invoke("--cells", "kill:forward")
    assert "runs are kept" not in result.output
    invoke("--cells", "kill:forward", "--keep", str(tmp_path / "kept"))
    line = (tmp_path / "kept" / drill_matrix.RESULTS).read_bytes()
    assert msgspec.json.decode(line)["row"] == "kill"
