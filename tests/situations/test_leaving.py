"""Ranks that leave, and spares that must neither keep the job open nor close it."""

from __future__ import annotations

import pytest

from closeranks.events import (
    Decided,
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
    trial = start("nothing", "--nproc-per-node", "2", "--spares", "1")
    spare = trial.wait_for(ProcessStarted, seat=None).event
    trial.wait_for(ProcessReady, proc=spare.proc)
    trial.kill(spare.pid)
    ended = trial.end()
    assert ended.code == 0, ended.output
    assert not ended.events(IncidentOpened)
    assert not ended.events(Decided)
    assert [event.detail for event in ended.events(ErrorSeen)] == ["a spare was ended by SIGKILL"]
    exits = {record.event.proc: record for record in ended.records if isinstance(record.event, ProcessExited)}
    heir = max(exits)  # the spare that took the place of the killed one
    assert heir > spare.proc
    assert (exits[heir].event.asked, exits[heir].event.signal) == (True, None)
    last_step = [record for record in ended.records if isinstance(record.event, StepClosed)][-1]
    assert exits[heir].mono_s - last_step.mono_s < 10
