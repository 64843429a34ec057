from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from closeranks.detect.accelerators import Device
from closeranks.detect.telemetry import Sample
from closeranks.events import NodeUnwell, NodeWell
from closeranks.run import telemetry
from closeranks.run.beside import beside
from closeranks.run.telemetry import Telemetry


def looked_at(samples):
    """What is written and what is told when these are the looks, one after the other."""
    notes, told = [], []
    due = []

    def look():
        sample = due.pop()
        if isinstance(sample, threading.Event):
            sample.wait()
            return Sample(at_s=0.0)
        return sample

    watch = Telemetry(SimpleNamespace(note=notes.append), look)
    watch.on_drain = told.append

    async def run():
        for sample in samples:
            due.append(sample)
            await watch.once()

    asyncio.run(run())
    return notes, told


def test_why_a_node_should_get_no_work_is_told_and_that_it_may_again():
    broken = Sample(at_s=10.0, devices=(Device(name="gpu0", recovery=1),))
    good = Sample(at_s=4000.0, devices=(Device(name="gpu0", recovery=0),))
    notes, told = looked_at([Sample(at_s=0.0), broken, good])
    assert [type(event) for event in notes] == [NodeUnwell, NodeWell]
    assert told == ["gpu0 recovery: the device asks for a reset", ""]


def test_a_look_that_hangs_is_silence_and_told_once(monkeypatch):
    monkeypatch.setattr(telemetry, "_WITHIN_S", 0.5)
    never = threading.Event()

    def samples():
        yield from (never, never)
        monkeypatch.setattr(telemetry, "_WITHIN_S", 30.0)
        yield Sample(at_s=30.0)

    notes, told = looked_at(samples())
    never.set()
    assert [(type(event), event.sign) for event in notes] == [(NodeUnwell, "telemetry"), (NodeWell, "telemetry")]
    assert told[-1] == ""


def test_a_look_at_this_machine_works():
    notes = []
    watch = Telemetry(SimpleNamespace(note=notes.append, folder="/"))
    asyncio.run(watch.once())
    assert watch._watch.before.host["disk free"] > 0
    assert not notes


def test_what_work_beside_the_loop_raises_is_raised():
    def work():
        raise ValueError("no such device")

    with pytest.raises(ValueError, match="no such device"):
        asyncio.run(beside(work, "test", 30.0))


def test_a_machine_that_has_no_thread_left_is_a_sign_and_no_defect(monkeypatch):
    """The run ended over a look at temperatures."""

    def none_left(_thread):
        raise RuntimeError("can't start new thread")

    def samples():
        with monkeypatch.context() as machine:
            machine.setattr(threading.Thread, "start", none_left)
            yield Sample(at_s=0.0)
            yield Sample(at_s=10.0)
        yield Sample(at_s=20.0)

    notes, told = looked_at(samples())
    assert [(type(event), event.sign) for event in notes] == [(NodeUnwell, "telemetry"), (NodeWell, "telemetry")]
    assert told == ["telemetry: no look is possible: can't start new thread", ""]
