"""A few cells of the drill matrix with real processes: an end, a disk, a value, and a control."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from tests.warm import WarmRun

from closeranks.drill import runner as runner_module
from closeranks.drill.expected import Expected
from closeranks.drill.matrix import chosen
from closeranks.drill.matrix_report import State
from closeranks.drill.matrix_runs import MatrixRuns
from closeranks.drill.runner import Runner
from closeranks.drill.score import Effect


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrix")
    return MatrixRuns(Runner(folder), folder, seed=0)


def warm(command, *, env, stdout, **_):
    """In place of ``subprocess.Popen``."""
    words = tuple(command[command.index("run") + 1 :])
    return WarmRun(words, cwd=Path.cwd(), environment=env, output=Path(stdout.name))


def patient(cell):
    """The cell with ten times the seconds: whether they are kept is measured where nothing runs beside it."""
    phases = {
        phase: replace(one, detect_s=10 * one.detect_s, rto_s=10 * one.rto_s) if isinstance(one, Expected) else one
        for phase, one in cell.row.phases.items()
    }
    return replace(cell, row=replace(cell.row, phases=phases))


@pytest.mark.process
@pytest.mark.parametrize(
    ("key", "effect"),
    [
        ("kill:optimizer", Effect.RECOVERED),
        ("no-space:saving", Effect.RECOVERED),
        ("evaluation:forward", Effect.LEFT_ALONE),
    ],
)
def test_a_cell_is_right(runs, monkeypatch, key, effect):
    monkeypatch.setattr(runner_module, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": warm}))
    (cell,) = chosen(key)
    result = runs.make(patient(cell), "replay")
    assert result.score is not None
    assert (result.state, result.score.effect, result.score.reasons) == (State.RIGHT, effect, ())
