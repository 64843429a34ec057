from __future__ import annotations

import functools
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


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], tuple[object, list[str]]]:
    """The final states and the losses of a script in which nothing goes wrong; it runs once, however many ask."""

    @functools.cache
    def run(function: str, seats: int) -> tuple[object, list[str]]:
        ranks = Ranks(function, seats, tmp_path_factory.mktemp(function))
        try:
            ranks.run_set_up()
            ranks.finish()
            return ranks.finals(), ranks.losses()
        finally:
            ranks.close()

    return run
