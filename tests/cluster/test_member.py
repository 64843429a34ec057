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


@pytest.mark.parametrize("scarce", [True, False])
def test_a_node_that_lacked_only_room_is_tried_again_and_any_other_is_not(monkeypatch, tmp_path, scarce):
    """A spare node that began on a full disk got no work for as long as it lived, whatever was freed."""

    async def check() -> tuple[list[str], list[Any], int]:
        found = [Checked(NodeChecked(level="start", outcomes={}, took_s=0.0), "room: 0 MiB left", scarce)] * 3
        found.append(Checked(found[0].event, "", False))
        tried, reports, noted, tasks = iter(found), [], [], []
        monkeypatch.setattr(member_module, "checked", lambda *_: next(tried))
        options = RunOptions(target="x", nnodes=2, look_every_s=0.001)
        one = member(None, led=True)
        one._context = SimpleNamespace(
            ending=None,
            options=options,
            folder=tmp_path,
            note=noted.append,
            spawn=lambda work: tasks.append(asyncio.create_task(work)),
        )
        one._check_again = lambda subject: Member._check_again(one, subject)
        one._report = lambda: reports.append(one._failed)
        await Member._check(one)
        await asyncio.gather(*tasks)
        return [one._failed, *reports], noted, len(list(tried))

    failed, noted, untried = asyncio.run(check())
    assert (failed, len(noted), untried) == ((["", ""], 2, 0) if scarce else (["room: 0 MiB left"], 1, 3))
