from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from closeranks.drill.verdict import Final
from situations.trial import COLD, RANK, Trial

SEATS, STEPS = 4, 40

Start = Callable[..., Trial]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``rank.py`` in a situation; ends what is left of it afterwards."""
    trials: list[Trial] = []

    def make(
        situation: str, *options: str, script: tuple[str, ...] | None = None, launcher: tuple[str, ...] | None = None
    ) -> Trial:
        words = (str(RANK), situation, str(STEPS)) if script is None else script
        folder = tmp_path / f"{len(trials)}"
        folder.mkdir()
        trials.append(Trial(folder, *options, *words, launcher=launcher))
        return trials[-1]

    yield make
    for trial in trials:
        trial.clean_up()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Final]:
    """The final states of the run in which nothing goes wrong; it begins as a user's does, from nothing."""
    words = ("--nproc-per-node", str(SEATS), str(RANK), "nothing", str(STEPS))
    trial = Trial(tmp_path_factory.mktemp("undisturbed"), *words, launcher=COLD)
    try:
        ended = trial.end()
    finally:
        trial.clean_up()
    assert ended.code == 0, ended.output
    assert len(ended.finals) == SEATS
    return ended.finals
