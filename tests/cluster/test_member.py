"""A member of several nodes that is told to stop, without processes."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from closeranks.cluster import member as member_module
from closeranks.cluster.member import Member
from closeranks.decide.protocol import EndRun, ProcEnded, StopAsked
from closeranks.events import NodeChecked
from closeranks.nodes.words import Heard
from closeranks.probe.checks import Checked
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


NOTHING = NodeChecked(level="start", outcomes={}, took_s=0.0)
SHORT = Checked(NOTHING, "room: 0 MiB left", scarce=True)
BROKEN = Checked(NOTHING, "memory: a bit is stuck", scarce=False)
WELL = Checked(NOTHING, "", scarce=False)


@pytest.mark.parametrize(
    ("checks", "reported", "noted"),
    [
        ([SHORT, SHORT, SHORT, WELL], ["room: 0 MiB left", ""], 2),
        ([SHORT, BROKEN, WELL], ["room: 0 MiB left", "memory: a bit is stuck"], 2),
        ([BROKEN, WELL], ["memory: a bit is stuck"], 1),
        ([WELL], [""], 1),
    ],
)
def test_a_node_that_lacked_only_room_is_tried_again_and_any_other_is_not(
    monkeypatch, tmp_path, checks, reported, noted
):
    """A spare node that began on a full disk got no work for as long as it lived, whatever was freed."""

    async def check() -> None:
        tried, reports, notes = iter(checks), [], []
        monkeypatch.setattr(member_module, "checked", lambda *_: next(tried))
        options = RunOptions(target="x", nnodes=2, look_every_s=0.001)
        one = member(None, led=True)
        one._failed = ""
        one._context = SimpleNamespace(ending=None, options=options, folder=tmp_path, note=notes.append)
        one._check = lambda: Member._check(one)
        one._report = lambda: reports.append(one._failed)
        short = await Member._check(one)
        one._report()
        if short:
            await Member._check_again(one)
        assert (reports, len(notes), list(tried)) == (reported, noted, [WELL] if BROKEN in checks else [])

    asyncio.run(check())
