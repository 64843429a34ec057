"""A member of several nodes that is told to stop, without processes."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from closeranks.cluster.member import Member
from closeranks.decide.protocol import EndRun, ProcEnded, StopAsked
from closeranks.nodes.words import Heard
from closeranks.run.options import RunOptions

NOW = StopAsked(signal=signal.SIGINT, now=True)


def member(ending: EndRun | None, *, led: bool) -> Any:
    said: list[Any] = []
    context = SimpleNamespace(ending=ending, options=RunOptions(target="x", nnodes=2))
    known = SimpleNamespace(hear=lambda _: None)
    parts = {"_stop": [], "_known": known, "_say": said.append, "_welcome": object() if led else None}
    return SimpleNamespace(_context=context, _may_leave_alone=lambda _: False, said=said, **parts)


def test_a_second_signal_hurries_an_end_and_changes_nothing_else_about_it():
    # It was told to the leader, who has no more to decide then: workers kept their whole grace.
    failed = EndRun(outcome="failed", exit_code=3, reason="seat 1 was lost")
    assert Member.step(member(failed, led=True), NOW, 0.0) == (
        EndRun(outcome="failed", exit_code=3, reason="seat 1 was lost", now=True),
    )


@pytest.mark.parametrize("led", [True, False])
def test_before_that_the_leader_decides_where_there_is_one(led):
    one = member(None, led=led)
    decisions = Member.step(one, NOW, 0.0)
    assert [decision.exit_code for decision in decisions] == ([] if led else [130])
    assert bool(one.said) == led


@pytest.mark.parametrize("closed", [True, False])
def test_steps_that_were_closed_before_a_process_ended_are_told_before_its_end(closed):
    """They waited for the next beat: the coordinator began the group anew without having heard of them."""
    one = member(None, led=True)
    one._closed = [object()] if closed else []
    one._send_beat = lambda _now_s: one.said.append("beat")
    end = ProcEnded(proc=1, code=1, signal=None, crash=None, left_at_step=None)
    assert Member.step(one, end, 0.0) == ()
    assert one.said == (["beat"] if closed else []) + [Heard(fact=end)]
