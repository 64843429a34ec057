from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from closeranks.drill.nodes.runs import AUTHORITY, NodesRun, NodesSpec
from closeranks.drill.nodes.stand import Stand
from closeranks.drill.runner import finals_of
from closeranks.drill.verdict import Final

SOURCE = Path(__file__).parents[2] / "src"
TOY = str(Path(__file__).with_name("toy.py"))
STEPS, STEP_MS, HOLD = 12, 10, 6


@pytest.fixture(scope="session", autouse=True)
def source() -> Iterator[None]:
    """What is started here runs this tree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SOURCE))
        yield


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., NodesRun]]:
    """Starts the toy on two nodes and a spare one; it waits before step HOLD until ``go`` is in the folder.

    ``again``: it also waits before that step, until ``again`` is there.
    """
    stands: list[Stand] = []

    def start(authority: str, *options: str, again: int = STEPS) -> NodesRun:
        hold = (("TOY_HOLD", f"{HOLD}:{tmp_path / 'go'},{again}:{tmp_path / 'again'}"),)
        spec = NodesSpec((TOY, str(STEPS), str(STEP_MS)), 2, 1, 1, authority, options, hold)
        stands.append(Stand((*spec.nodes, AUTHORITY)).__enter__())
        run = NodesRun(spec, stands[-1], tmp_path / "nodes")
        run.start()
        return run

    yield start
    for stand in stands:
        stand.__exit__()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Final]:
    """The final states of the same world on one node."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    words = ["run", "--nproc-per-node", "2", "--view", "none", "--run-dir", str(folder)]
    command = [sys.executable, "-m", "closeranks", *words, TOY, str(STEPS), str(STEP_MS)]
    subprocess.run(command, env=os.environ, check=True, timeout=100, stdin=subprocess.DEVNULL)
    return finals_of(folder)
