from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from real_run import Run


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs of a script given as text; ends what is left of them afterwards."""
    runs: list[Run] = []

    def start(script: str, *options: str, arguments: tuple[str, ...] = ()) -> Run:
        number = len(runs)
        path = tmp_path / f"script{number}.py"
        path.write_text(script)
        run = Run(tmp_path / f"run{number}", *options, str(path), *arguments, cwd=tmp_path)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.clean_up()
