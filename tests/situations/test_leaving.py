"""Ranks that leave, and spares that must neither keep the job open nor close it."""

from __future__ import annotations

import pytest

from closeranks.events import (
    ErrorSeen,
    IncidentClosed,
    IncidentOpened,
    ProcessExited,
    ProcessReady,
    ProcessStarted,
    RunEnded,
    StepClosed,
)

pytestmark = pytest.mark.process


def test_a_rank_that_leaves_early_and_reports_success_is_named_and_replaced(start, undisturbed):
    ended = start("leave-once", "--nproc-per-node", "4").end()
    assert ended.code == 0, ended.output
    assert [event.seats for event in ended.events(IncidentOpened)] == [(1,)]
    assert "seats [1] left after step 5 and exited with success" in ended.output
    assert ended.events(IncidentClosed)[0].steps_lost == 0
    assert ended.finals == undisturbed


def test_a_rank_that_leaves_early_each_time_stops_the_job_with_the_reason(start):
    ended = start("leave-always", "--nproc-per-node", "3").end()
    assert ended.code == 1, ended.output
    (end,) = ended.events(RunEnded)
    assert end.outcome == "failed"
    assert "seats [1] left after step 5 and exited with success" in end.reason
    assert "left early after step 5 came again" in end.reason
    assert not ended.finals


def test_a_spare_neither_closes_the_job_by_its_end_nor_keeps_it_open_by_its_life(start):
    trial = start("idle", "--nproc-per-node", "2", "--spares", "1")
    killed = trial.wait_for(ProcessReady, proc=3).event.proc
    trial.see(StepClosed, step=4)  # before the spare was ready, or after it
    trial.kill(trial.pids()[killed])
    heir = trial.wait_for(ProcessStarted, seat=None).event.proc
    trial.wait_for(ProcessReady, proc=heir)
    trial.let_go("go-1")
    trial.let_go("go-2")
    ended = trial.end()
    assert ended.code == 0, ended.output
    assert not ended.events(IncidentOpened)
    assert [event.detail for event in ended.events(ErrorSeen)] == ["a spare was ended by SIGKILL"]
    (exit_of_heir,) = [event for event in ended.events(ProcessExited) if event.proc == heir]
    assert exit_of_heir.asked
