"""Seats that keep the others waiting, in real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from closeranks.events import StepClosed, StragglerNamed

pytestmark = pytest.mark.process

SCRIPT = str(Path(__file__).with_name("slow_rank.py"))
SLOW_FROM, STEPS = 7, 40


@pytest.mark.parametrize(("where", "cause"), [("data", "data loading"), ("forward", "computation")])
def test_a_seat_that_is_20_percent_slower_is_named_within_30_steps_with_its_cause(start, where, cause):
    ended = start("", "--nproc-per-node", "4", script=(SCRIPT, where, str(STEPS), "2")).end()
    assert ended.code == 0, ended.output
    named = ended.events(StragglerNamed)
    assert named, [event.own_s for event in ended.events(StepClosed)]
    first = named[0]
    assert (first.seats, first.cause) == ((2,), cause), first
    assert where in first.reason
    assert first.step - SLOW_FROM < 30
    assert 0.1 < first.slower < 0.4
    assert "seat 2 keeps the others waiting" in ended.output
