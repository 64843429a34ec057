"""What is known of losses before a run begins."""

from pathlib import Path

import pytest

from closeranks.events import Decided, RunEnded, Rung, RunResumed, RunStarted
from closeranks.journal import Journal
from closeranks.run.earlier import known_losses


def _run(folder: Path, *events, ended="failed", resumed: Path | None = None) -> str:
    folder.mkdir()
    with Journal.create(folder / "journal.jsonl", folder.name, "here") as journal:
        journal.append(RunStarted(command=("x",), seats=2, spares=0, pid=1, versions={}), 0)
        if resumed is not None:
            journal.append(RunResumed(from_run=str(resumed), store="/ckpt", step=3), 0)
        for event in events:
            journal.append(event, 1)
        if ended:
            journal.append(RunEnded(outcome=ended, exit_code=1, reason=""), 1)
    return str(folder)


def _decided(incident, rung):
    return Decided(incident=incident, rung=rung, term=2, reason="")


def test_nothing_is_known_of_a_run_without_forerunners():
    assert known_losses(None, None).count == 0
    assert known_losses("/no/such/run", None).watched_s == 0.0


def test_restarts_of_the_group_and_the_end_of_a_run_are_losses_and_what_survivors_mended_is_none(tmp_path):
    mended = _decided(1, Rung.SPARE)
    again = [_decided(2, Rung.COLD_RESTART), _decided(2, Rung.COLD_RESTART), _decided(3, Rung.ROLL_BACK)]
    assert known_losses(_run(tmp_path / "a", mended, *again), None).count == 3
    assert known_losses(_run(tmp_path / "killed", ended=""), None).count == 1
    assert known_losses(_run(tmp_path / "asked", ended="stopped"), None).count == 0


def test_the_runs_before_that_one_count_too(tmp_path):
    first = _run(tmp_path / "a", ended="")
    second = _run(tmp_path / "b", ended="", resumed=Path(first))
    known = known_losses(second, None)
    assert known.count == 2
    assert known.watched_s > 0


def test_runs_that_name_each_other_are_not_followed_for_ever(tmp_path):
    folder = tmp_path / "a"
    assert known_losses(_run(folder, resumed=folder), None).count > 1


def test_a_file_that_closeranks_fit_did_not_write_is_refused(tmp_path):
    file = tmp_path / "reliability.toml"
    file.write_text("unit_exposure = 3\n")
    with pytest.raises(ValueError, match="reliability"):
        known_losses(None, str(file))
