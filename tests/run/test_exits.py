"""A process that cannot be ended does not block the supervisor."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from closeranks.decide.protocol import Fact, Isolate
from closeranks.events import StackCaptured
from closeranks.journal import read
from closeranks.run import exits as exits_module
from closeranks.run import stacks
from supervisor_stand import Stand, ended, until


@pytest.mark.process
def test_a_process_that_is_isolated_is_reported_ended_once(tmp_path):
    async def isolate() -> list[Fact]:
        stand = Stand(tmp_path)
        for _ in range(2):
            stand.exits.isolate(Isolate(proc=1, reason="test", capture_stack=False))
        await until(lambda: stand.listener.facts)
        stand.close()
        return stand.listener.facts

    assert asyncio.run(isolate()) == [ended(signal.SIGKILL, unkillable=False)]


@pytest.mark.process
def test_a_process_that_does_not_die_is_fenced_and_its_late_end_changes_nothing(tmp_path, monkeypatch):
    async def isolate() -> tuple[list[Fact], bool]:
        stand = Stand(tmp_path)
        stand.exits.kill = lambda _worker: None
        stand.exits.isolate(Isolate(proc=1, reason="test", capture_stack=False))
        await until(lambda: stand.listener.facts)
        alive = stand.worker.alive
        os.kill(stand.child.pid, signal.SIGKILL)
        await until(lambda: stand.worker.ended)
        stand.close()
        return stand.listener.facts, alive

    monkeypatch.setattr(exits_module, "UNKILLABLE_S", 0.1)
    facts, alive = asyncio.run(isolate())
    assert facts == [ended(None, unkillable=True)]
    assert not alive


def captured(stand: Stand) -> list[str]:
    records = read(stand.context.journal.path).records
    return [record.event.summary for record in records if isinstance(record.event, StackCaptured)]


@pytest.mark.process
def test_a_stuck_process_whose_stacks_the_disk_does_not_take_is_ended_and_the_run_goes_on(tmp_path):
    async def isolate() -> tuple[list[Fact], list[str], object]:
        stand = Stand(tmp_path)
        (tmp_path / "stacks").rmdir()
        (tmp_path / "stacks").write_bytes(b"")
        stand.exits.isolate(Isolate(proc=1, reason="test", capture_stack=True))
        await until(lambda: stand.listener.facts)
        stand.close()
        return stand.listener.facts, captured(stand), stand.context.ending

    facts, (summary,), ending = asyncio.run(isolate())
    assert facts == [ended(signal.SIGKILL, unkillable=False)]
    assert summary.startswith("no frames, process state S")
    assert summary.endswith("(the file was not written: Not a directory)")
    assert ending is None


@pytest.mark.process
def test_a_stuck_process_that_dies_while_its_stacks_are_taken_is_no_defect(tmp_path, monkeypatch):
    """The look went on in the memory of the process, which was closed with it: the run ended over that."""

    async def isolate() -> tuple[list[Fact], list[str], object]:
        stand = Stand(tmp_path)
        stand.worker.mute = True
        stand.exits.isolate(Isolate(proc=1, reason="test", capture_stack=True))
        await until(lambda: captured(stand))
        stand.close()
        return stand.listener.facts, captured(stand), stand.context.ending

    monkeypatch.setattr(stacks, "_handles", lambda _pid: True)  # it has none: the signal ends it
    facts, summaries, ending = asyncio.run(isolate())
    assert facts == [ended(stacks.STACK_SIGNAL, unkillable=False)]
    assert summaries == ["nothing is known"]
    assert ending is None
