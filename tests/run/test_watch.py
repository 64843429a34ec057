"""What a supervisor makes of the pages of its workers, and when."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from closeranks import messages
from closeranks.decide.protocol import EndAfterStep, Fact, ProcEnded, StepDone
from closeranks.events import Category
from closeranks.run.carry import Carry
from closeranks.run.options import RunOptions
from closeranks.run.orphans import Orphans
from closeranks.run.watch import Watch
from closeranks.vitals import Field
from supervisor_stand import Stand, until


@pytest.mark.process
def test_a_step_that_all_closed_before_they_ended_is_told_before_their_ends(tmp_path):
    """Between two looks it was told after, and a group that began anew then lost it: it was no lost step of anybody."""

    periods_s: list[tuple[int, float]] = []

    async def end() -> list[Fact]:
        stand = Stand(tmp_path)
        stand.more()
        watch = Watch(stand.context, stand.exits, Orphans(), None)
        stand.exits.before_release = watch.part
        stand.context.members, stand.context.seats = {0: 1, 1: 2}, 2
        watch.on_step = lambda closed, period_s: periods_s.append((closed.step, period_s))
        watch.expect()
        for worker in stand.context.workers.values():
            worker.page.begin(Category.USEFUL)
            for step, norm in ((6, 1.0), (7, 1000.0)):
                worker.page.reals[Field.GRAD_NORM] = norm
                worker.page.close_step(step, 1, time.monotonic_ns(), 0.5)
            worker.page.reals[Field.GRAD_NORM] = 3.0  # of the one that is open
        for worker in stand.context.workers.values():
            os.kill(worker.started.pid, signal.SIGKILL)
        await until(lambda: sum(isinstance(fact, ProcEnded) for fact in stand.listener.facts) == 2)
        await stand.end()
        return stand.listener.facts

    first, second, *ends = asyncio.run(end())
    assert isinstance(first, StepDone)
    assert isinstance(second, StepDone)
    assert [(one.step, one.grad_norm) for one in (first, second)] == [(6, 1.0), (7, 1000.0)]
    assert periods_s == [(6, 0.0), (7, second.period_s)]
    assert 0 < second.period_s < 1
    assert [type(fact) for fact in ends] == [ProcEnded, ProcEnded]


@pytest.mark.parametrize(
    ("step_s", "grace_s", "expected"),
    [(0.005, 30.0, 202), (0.005, 0.5, 112), (0.4, 30.0, 103), (10.0, 30.0, 102), (None, 30.0, 102)],
)
def test_an_end_after_a_step_leaves_the_word_half_a_second_to_reach_every_seat(step_s, grace_s, expected):
    """A seat that heard it too late went on alone and waited until the grace was over; nothing was saved."""
    sent: list[Any] = []
    workers, options = {1: SimpleNamespace(send=sent.append)}, RunOptions(target="x", grace_s=grace_s)
    context: Any = SimpleNamespace(members={0: 1}, workers=workers, options=options)
    watch: Any = SimpleNamespace(newest_open_step=lambda: 100, steps_in=lambda s: s / step_s if step_s else 0.0)
    nothing: Any = None
    Carry(context, nothing, nothing, watch, nothing).out(EndAfterStep())
    assert sent == [messages.StopAfter(step=expected)]
