"""Bad input on the real command line: refused at once, with the way out, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from closeranks.events import Decided, ProcessReady, RunEnded, StepClosed
from situations.trial import RANK, SOURCE

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run --spare 1 train.py", "closeranks run: unknown option --spare; did you mean --spares?"),
        ("run --nproc-per-node 0 train.py", "closeranks run: --nproc-per-node: expected at least 1, got 0"),
        ("run --run-dir finished train.py", "holds a run already and is never overwritten; choose another --run-dir"),
        ("drill none.toml", "closeranks drill: none.toml: the plan cannot be read"),
        ("drill torn.toml", "closeranks drill: torn.toml: not TOML"),
        ("drill key.toml", 'closeranks drill: key.toml line 2: run.seat: unknown key; did you mean "seats"?'),
    ],
)
def test_it_is_refused_with_the_way_out_and_nothing_changes(tmp_path, words, message):
    (tmp_path / "train.py").write_text("raise SystemExit('must not run')\n")
    (tmp_path / "torn.toml").write_text("[run\n")
    (tmp_path / "key.toml").write_text("[run]\nseat = 4\n")
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished" / "run.json").write_text('{"outcome": "completed"}')
    before = contents(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "closeranks", *words.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_more_losses_than_anyone_is_left_to_make_good_end_in_a_reasoned_stop(start):
    trial = start("endless", "--nproc-per-node", "2", "--max-restarts", "0")
    for proc in (1, 2):
        trial.wait_for(ProcessReady, proc=proc)
    trial.wait_for(StepClosed, step=5)
    for seat in (0, 1):
        trial.strike(seat)
    ended = trial.end()
    assert ended.code == 128 + signal.SIGKILL, ended.output
    (end,) = ended.events(RunEnded)
    assert "no member survived that could give its state" in end.reason
    assert "no cold restart is allowed (--max-restarts 0)" in end.reason
    assert ended.events(Decided)
    assert not ended.finals
    assert str(RANK) not in ended.output.splitlines()[-1]
