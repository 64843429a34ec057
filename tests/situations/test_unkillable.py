"""A process that cannot be ended, and what it can do when it wakes up after another took its seat: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from closeranks import messages
from closeranks.events import Decided, IncidentClosed, ProcessExited, ProcessSeated, Rung, StepClosed, TermBegan
from closeranks.run import exits as exits_module
from closeranks.run.descendants import read_stat
from real_run import eventually
from supervisor_stand import Stand, ended, until

pytestmark = pytest.mark.process

DOUBLE = (sys.executable, str(Path(__file__).with_name("unkillable.py")))


def test_it_does_not_hold_up_the_job_and_neither_joins_reports_nor_transfers_when_it_wakes_up(start, undisturbed):
    trial = start("freeze", "--nproc-per-node", "4", launcher=DOUBLE)
    first = trial.wait_for(ProcessSeated, seat=1, incarnation=1).event.proc
    trial.wait_for(TermBegan, term=2)
    trial.wait_for(StepClosed, step=20)  # the survivors and the new s1.2 sit in a section
    old = trial.pids()[first]
    assert read_stat(old).state == "T"
    trial.kill(old, signal.SIGCONT)
    assert eventually(lambda: read_stat(old).state == "S", 10)  # it went as far as it gets
    trial.let_go("go-1")
    ended_run = trial.end()
    assert ended_run.code == 0, ended_run.output
    assert "s1.1 (pid" in ended_run.output
    assert "cannot be killed; it is fenced" in ended_run.output
    assert [event.rung for event in ended_run.events(Decided)] == [Rung.FORK]
    assert ended_run.events(IncidentClosed)[0].steps_lost == 0
    assert [event.term for event in ended_run.events(TermBegan)] == [1, 2]
    assert first not in {event.proc for event in ended_run.events(ProcessExited)}
    assert ended_run.finals == undisturbed


OLD_WORDS = (
    messages.Joined(facts={}),
    messages.Ready(rehearsed=True, replicated=True),
    messages.Poisoned(term=1, detail="a peer is gone"),
    messages.Paused(term=1, closed_step=3, intact=True, settled=True, digest="d"),
    messages.Regrouped(term=2, groups="g"),
    messages.Restored(term=2, step=3, digest="d"),
    messages.Finished(step=9),
    messages.Failed(error="E", message="m", where="w", step=3, traceback="t"),
)


@pytest.mark.parametrize(
    "read_before", [False, True], ids=["sent after the fence", "on its way when the fence went up"]
)
def test_nothing_that_a_fenced_process_says_is_heard(tmp_path, monkeypatch, read_before):
    async def wake_up() -> list:
        stand = Stand(tmp_path)
        stand.exits.kill = lambda _worker: None
        stand.exits.isolate(exits_module.Isolate(proc=1, reason="test", capture_stack=False))
        await until(lambda: stand.worker.fenced)
        for word in OLD_WORDS:
            if read_before:
                stand.ears.hear(stand.worker, word)
            else:
                stand.theirs.send(messages.encode(word))
        os.kill(stand.child.pid, signal.SIGKILL)  # what it left in the socket is drained at its end
        await until(lambda: stand.worker.ended)
        stand.close()
        return stand.listener.facts

    monkeypatch.setattr(exits_module, "UNKILLABLE_S", 0.05)
    assert asyncio.run(wake_up()) == [ended(None, unkillable=True)]
