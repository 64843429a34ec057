"""What bench/overhead.py switches off and on inside one process group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

import closeranks as cr
from closeranks.train.group import OuterGroup
from closeranks.train.steps import Loop


class Supervision:
    """Takes everything that the library does in a step out of a job, and puts it back.

    On the other side are left: torch's way into a Python process group and one call from there to gloo, the generator
    and the object of a step, the control thread, which sleeps, and the supervisor's look at the pages 20 times a second.
    """

    def __init__(self, job: cr.Job, plain_batch: Callable[[int], Any]) -> None:
        """``plain_batch``: what a script would have for a step's batch without ``cr.Batches``."""

        def allreduce(group: Any, tensors: Any, opts: Any = None) -> Any:
            return group.inner.cpu.allreduce(tensors, opts)

        def opened(_loop: Any, step: Any) -> None:
            step.batch = plain_batch(step.number)

        def left(loop: Any, step: Any, _error: BaseException | None) -> bool:
            loop.closed = step.number
            return False

        self._job = job
        self._parts = {
            (OuterGroup, "allreduce"): (OuterGroup.allreduce, allreduce),
            (Loop, "open"): (Loop.open, opened),
            (Loop, "leave"): (Loop.leave, left),
        }
        self._on = True

    def switch(self, *, on: bool) -> None:
        """Supervise the steps that follow, or do not."""
        if on == self._on:
            return
        self._on = on
        for (owner, name), (supervised, bare) in self._parts.items():
            setattr(owner, name, supervised if on else bare)
        job = self._job
        if on:
            job._hook = register_optimizer_step_pre_hook(job._before_apply)
        else:
            job._hook.remove()


class Guarding:
    """Watches attempts before they are applied, or does not."""

    def __init__(self, job: cr.Job) -> None:
        self._held = job.held

    def switch(self, *, on: bool) -> None:
        """Watch the steps that follow, or do not."""
        self._held.guard = cr.Guard() if on else cr.Guard(level="off")
