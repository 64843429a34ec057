"""Whose part of a step this seat computes: its own, or in a spot check that of another seat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from closeranks import messages
from closeranks.decide.spot_check import Spot, Way, part_of, round_of
from closeranks.train.batches import Batches
from closeranks.vitals import Field

if TYPE_CHECKING:
    from closeranks.detect.corruption import Judgement
    from closeranks.train.job import Job


class SpotChecks:
    """The attempt that is open, as far as it is part of a spot check."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.checking = False  # what is found in this attempt is compared with another one
        self.part = -1  # the seat whose part is computed; -1: this seat's own
        self.reduces = False  # gradients were seen on their way to a reduction
        self._left = (-1, -1)  # term and step of a part of another seat that nothing was done with

    def open(self, spot: Spot, step: int, share: float) -> None:
        """An attempt begins."""
        number = round_of(spot, step, share) if share else None
        self.checking, self.part = number is not None, -1
        if number is None or spot.way is Way.OWN or self._left == (self._job.world.term, step) or self.why_own():
            return
        seat = self._job.world.seat or 0
        part = part_of(number, seat, self._job.world.size)
        self.part = -1 if part == seat else part

    def leave(self) -> bool:
        """The block ends, and the script applied nothing. True: it must not be closed, since its part is another's."""
        if self.part < 0:
            return False
        self._left = (self._job.world.term, self._job.world.vitals.words[Field.STEP])
        return True

    def tell(self, step: int, way: Way, judged: Judgement | None) -> None:
        """How checked steps are computed twice is known now, or changes; the lowest seat says so."""
        if self._job.world.seat != 0:
            return
        told = self.why_own() if judged is None else judged.reason
        if way is Way.SWAPPED:
            told = "each seat's part is computed by another seat, too"
        elif way is Way.OWN:
            told = f"each seat computes its own part twice, which does not find a fault that stays: {told}"
        self._job.require_control().send(messages.SpotChecks(step=step, way=way.value, reason=told))
        if way is not Way.SWAPPED:
            sys.stderr.write(f"closeranks: spot checks from step {step} on: {told}\n")

    def why_own(self) -> str:
        """Why the part of another seat cannot be computed here; empty if it can."""
        job, protected = self._job, self._job.protected
        if job.world.size == 1:
            return "there is one seat"
        if job.batches is None:
            return "the batches of other seats are not known: no cr.Batches is protected"
        if not job.randomness.managed:
            return "random numbers are left to the script (randomness=False)"
        if protected.sharded:
            return "parameters are sharded"
        if not self.reduces:
            return "gradients are not reduced inside of backward, as DDP does it"
        if any(not isinstance(one, Batches) for one in protected.local.values()):
            return "there is state that differs by seat (protect(local=...))"
        if any(isinstance(one, torch.amp.GradScaler) and one.is_enabled() for one in protected.others.values()):
            return "a GradScaler is enabled"
        return ""
