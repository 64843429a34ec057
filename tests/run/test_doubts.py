"""What a question to a process and a look at it give."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal

import pytest

from closeranks import messages
from closeranks.run.descendants import states_of_threads
from closeranks.run.doubts import call
from supervisor_stand import Stand, until


def called(folder, prepare):
    """What a call of the stand's process gives, once ``prepare`` has acted on it."""

    async def talk():
        stand = Stand(folder)
        try:
            await prepare(stand)
            return await call(stand.worker), stand.worker.mute
        finally:
            os.kill(stand.child.pid, signal.SIGKILL)
            await until(lambda: stand.worker.ended)
            stand.close()

    return asyncio.run(talk())


async def stop(stand):
    os.kill(stand.child.pid, signal.SIGSTOP)
    await until(lambda: set(states_of_threads(stand.child.pid).values()) == {"T"})


@pytest.mark.process
def test_a_process_that_is_stopped_shows_no_sign_of_life(tmp_path):
    assert called(tmp_path, stop) == ((False, False), True)


@pytest.mark.process
def test_a_process_that_answers_is_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr("closeranks.run.doubts.read_use", None)
    monkeypatch.setattr("closeranks.run.doubts.ANSWER_S", 30.0)

    async def answer(stand):
        asyncio.get_running_loop().call_later(0.01, stand.theirs.sendall, messages.encode(messages.Pong(nonce=1)))

    assert called(tmp_path, answer) == ((True, False), False)


@pytest.mark.process
@pytest.mark.parametrize("letter", ["R", "D"])
def test_one_that_waits_for_a_processor_or_for_the_disk_is_not_taken_for_frozen(tmp_path, monkeypatch, letter):
    monkeypatch.setattr("closeranks.run.doubts.states_of_threads", lambda _pid: {1: "S", 2: letter})

    async def nothing(_stand):
        return

    assert called(tmp_path, nothing) == ((False, True), True)


@pytest.mark.process
def test_threads_that_wake_up_now_and_then_do_not_wait_for_the_machine(tmp_path, monkeypatch):
    looks = itertools.cycle([{1: "S", 2: "R"}, {1: "R", 2: "S"}])
    monkeypatch.setattr("closeranks.run.doubts.states_of_threads", lambda _pid: next(looks))
    assert called(tmp_path, stop) == ((False, False), True)


def test_a_process_that_is_gone_has_no_threads():
    assert states_of_threads(2**22 + 1) == {}
