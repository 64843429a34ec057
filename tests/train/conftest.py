from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.train.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Starts ranks of a script and ends them with the test."""
    started: list[Ranks] = []

    def make(function: str, size: int = 4) -> Ranks:
        folder = tmp_path / f"run{len(started)}"
        folder.mkdir()
        started.append(Ranks(function, size, folder))
        started[-1].run_set_up()
        return started[-1]

    yield make
    for ranks in started:
        ranks.close()
