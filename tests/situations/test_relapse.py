"""A recovery after which training is not what it was: the canary fails, and an older state takes over by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from closeranks.events import (
    CanaryFailed,
    CanaryPassed,
    CheckpointCommitted,
    CheckpointVerified,
    CorruptionCleared,
    CorruptionSuspected,
    Decided,
    RunEnded,
    Rung,
    StateLoaded,
)

pytestmark = pytest.mark.process

SCRIPT = str(Path(__file__).with_name("relapse.py"))
STEPS = 400
POLICY = "[canary]\nsteps = 10\n"


def test_a_recovery_that_did_not_work_goes_back_to_a_state_of_before_the_failure(start, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    store = ("--store", str(tmp_path / "store"), "--save-every", "5", "--policy", str(policy))
    store = (*store, "--min-deadline", "60s")  # a keeper that starts late on a busy machine keeps the script waiting
    trial = start("", "--nproc-per-node", "2", *store, script=(SCRIPT, str(STEPS)))
    trial.wait_for(CheckpointCommitted)
    trial.let_go("saved")
    failed = trial.wait_for(CanaryFailed)
    assert "loss 50" in failed.event.reason
    trial.wait_for(CanaryPassed)
    trial.let_go("passed")
    ended = trial.end()
    assert ended.code == 0, ended.output
    lost_step = failed.event.step - failed.event.steps
    assert [event.rung for event in ended.events(Decided)] == [Rung.FORK, Rung.ROLL_BACK]
    (loaded,) = ended.events(StateLoaded)
    assert loaded.step <= lost_step
    told = (*ended.events(CorruptionSuspected), *ended.events(CorruptionCleared))
    assert [event.source for event in told] == ["canary", "canary"]
    assert ended.events(RunEnded)[0].outcome == "completed"
    saved_since = {
        record.event.generation
        for record in ended.records
        if isinstance(record.event, CheckpointCommitted)
        and record.event.step > lost_step
        and record.mono_s < failed.mono_s
    }
    written_off = {event.generation for event in ended.events(CheckpointVerified) if not event.held}
    assert saved_since <= written_off, "no later run restores what was saved since the recovery"
