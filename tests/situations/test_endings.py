"""How runs end, and what a person reads last."""

from __future__ import annotations

import re
import signal
import time

import pytest

from closeranks.events import Decided, ProcessExited, ProcessStarted, RunEnded, SignalReceived, StepClosed
from situations.trial import EXAMPLES

pytestmark = pytest.mark.process

TWO, THREE = ("--nproc-per-node", "2"), ("--nproc-per-node", "3")


def test_a_start_up_crash_keeps_its_code_and_has_its_own_message_under_its_traceback(start):
    ended = start("start-up", *TWO).end()
    assert ended.code == 7, ended.output
    *_, error, reason, _folder = ended.output.splitlines()
    assert error.endswith("FileNotFoundError: [Errno 2] No such file or directory: '/no/such/data'")
    assert "failed before the first step (start-up crash)" in reason
    assert len(ended.events(ProcessStarted)) == 4  # one restart, however many are allowed later


def test_a_run_whose_final_states_cannot_be_written_down_is_complete(start):
    """It was told to have failed in its last step, when everything was done: its disk was full."""
    ended = start("full-disk", *TWO).end()
    assert ended.code == 0, ended.output
    assert [end.outcome for end in ended.events(RunEnded)] == ["completed"]
    assert len(re.findall(r"final/seat[01]\.json: .*; the run is complete, no drill can compare it", ended.output)) == 2


def test_a_crash_that_comes_again_at_the_same_place_and_step_stops_the_job_and_says_so(start):
    ended = start("crash-always", *TWO).end()
    assert ended.code == 1, ended.output
    *_, source, error, reason, _folder = ended.output.splitlines()
    assert source.strip() == 'raise ValueError("no such sample")'
    assert error == "ValueError: no such sample"
    assert "deterministic: ValueError at rank.py" in reason
    assert "in step 6 came again after a recovery" in reason
    assert len(ended.events(Decided)) == 2


def test_state_that_cannot_be_protected_is_refused_with_the_way_out(start):
    ended = start("unprotectable", *TWO, "--max-restarts", "0").end()
    assert ended.code == 1, ended.output
    *_, error, reason, _folder = ended.output.splitlines()
    assert "protect(cache=...): expected an object with state_dict() and load_state_dict(), got builtins.dict" in error
    assert "before the first step" in reason


def test_a_rank_that_never_joins_is_named_after_the_join_timeout(start):
    ended = start("no-join", *THREE, "--join-timeout", "1").end()
    assert ended.code == 1, ended.output
    (end,) = ended.events(RunEnded)
    # On a busy machine another one may have been late as well.
    assert re.match(r"seats \[(0, )?1(, 2)?\] did not call join\(\) within 1 s of the first that did; ", end.reason)
    assert "--join-timeout" in end.reason


def test_sigterm_once_finishes_the_step_and_leaves_with_143(start):
    trial = start("endless", *TWO)
    trial.wait_for(StepClosed, step=5)
    trial.process.send_signal(signal.SIGTERM)
    ended = trial.end()
    assert ended.code == 143, ended.output
    assert {(event.code, event.signal) for event in ended.events(ProcessExited)} == {(0, None)}
    last = ended.events(StepClosed)[-1].step
    assert {final.step for final in ended.finals.values()} == {last}
    assert ended.events(RunEnded)[0].outcome == "stopped"


def test_sigterm_twice_leaves_at_once(start):
    trial = start("idle", *TWO)  # the step does not end by itself
    trial.wait_for(StepClosed, step=4)
    trial.process.send_signal(signal.SIGTERM)
    trial.wait_for(SignalReceived)
    asked_s = time.monotonic()
    trial.process.send_signal(signal.SIGTERM)
    ended = trial.end()
    assert ended.code == 143, ended.output
    assert ended.records[-1].mono_s - asked_s < 3
    assert ended.events(RunEnded)[0].outcome == "stopped"


def test_a_plain_script_that_loses_a_rank_restarts_as_a_whole_and_completes(start):
    small = ("--steps", "1500", "--layers", "1", "--width", "32", "--context", "16", "--batch", "4")
    trial = start("", *TWO, script=(str(EXAMPLES / "plain_ddp.py"), *small))
    first = [trial.wait_for(ProcessStarted, seat=seat).event for seat in range(2)]
    trial.wait_for_output("[s0.1] step 2 ")
    trial.kill(first[1].pid)
    ended = trial.end()
    assert ended.code == 0, ended.output
    started = [(event.proc, event.seat) for event in ended.events(ProcessStarted)]
    assert started == [(1, 0), (2, 1), (3, 0), (4, 1)]
    assert "[s0.2] step 0 " in ended.output
    assert "[s0.2] step 1499 " in ended.output
