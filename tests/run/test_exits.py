"""A process that cannot be ended does not block the supervisor."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from closeranks.decide.protocol import Fact, Isolate
from closeranks.run import exits as exits_module
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
