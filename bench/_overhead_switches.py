"""What bench/overhead.py switches off and on inside one process group."""

from __future__ import annotations

from typing import Any

import closeranks as cr
from closeranks.train.group import OuterGroup
from closeranks.train.steps import Loop


class Supervision:
    """Takes what the library does in a step out of a job, and puts it back.

    On the other side are left: torch's way into a Python process group and one call from there to gloo; the generator
    and the object of a step; one comparison before the update; ``cr.Batches``, which is measured apart; the control
    thread, which sleeps; and the supervisor's look at the pages 20 times a second.
    """

    def __init__(self) -> None:
        def allreduce(group: Any, tensors: Any, opts: Any = None) -> Any:
            return group.inner.cpu.allreduce(tensors, opts)

        def opened(loop: Any, step: Any) -> None:
            step.batch = loop.job.batches.fetch(step.number, loop.world.seat, loop.world.size)

        def left(loop: Any, step: Any, _error: BaseException | None) -> bool:
            loop.closed = step.number
            return False

        self._parts = {
            (OuterGroup, "allreduce"): (OuterGroup.allreduce, allreduce),
            (Loop, "open"): (Loop.open, opened),
            (Loop, "leave"): (Loop.leave, left),
        }

    def switch(self, *, on: bool) -> None:
        """Supervise the steps that follow, or do not."""
        for (owner, name), (supervised, bare) in self._parts.items():
            setattr(owner, name, supervised if on else bare)


class Guarding:
    """Watches attempts before they are applied, or does not."""

    def __init__(self, job: cr.Job) -> None:
        self._held = job.held

    def switch(self, *, on: bool) -> None:
        """Watch the steps that follow, or do not."""
        self._held.guard = cr.Guard() if on else cr.Guard(level="off")
