"""Undisturbed training in closed form: which steps are closed and which saves are taken by a given time.

A stretch costs the same whether it lasts a minute or a week, which is what makes months of a fleet cheap.
"""

from __future__ import annotations

import math

import msgspec


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Training from ``begin_s`` on: steps of ``step_s``; after every ``every``-th, counted from ``base``, a pause.

    Steps are counted within the stretch, 1.., so that step j of it is step ``after + j`` of the job.
    """

    begin_s: float
    after: int  # newest step of the job that was closed before
    step_s: float
    every: int = 0  # steps between saves; 0: nothing is saved
    base: int = -1  # step after which the newest save was due
    pause_s: float = 0.0

    def saves(self, count: int) -> int:
        """How many of the first ``count`` steps are followed by a save."""
        if not self.every:
            return 0
        return (self.after + count - self.base) // self.every - (self.after - self.base) // self.every

    def closed_s(self, count: int) -> float:
        """When the step of that number within the stretch is closed."""
        return self.begin_s + count * self.step_s + self.pause_s * self.saves(max(0, count - 1))

    def opened_s(self, count: int) -> float:
        """When the attempt after that many steps is opened: their pauses are over."""
        return self.begin_s + count * self.step_s + self.pause_s * self.saves(count)

    def closed_by(self, now_s: float) -> int:
        """How many steps are closed by then."""
        passed_s = now_s - self.begin_s
        if passed_s < self.step_s:
            return 0
        a_cycle_s = self.every * self.step_s + self.pause_s
        cycles = math.floor(passed_s / a_cycle_s) if self.every else 0
        left_s = passed_s - cycles * a_cycle_s
        count = cycles * self.every + math.floor(left_s / self.step_s)
        while self.closed_s(count) > now_s:  # pauses within the last cycle, and rounding
            count -= 1
        while self.closed_s(count + 1) <= now_s:
            count += 1
        return count

    def save_step(self, number: int) -> int:
        """The step of the job after which the save of that number within the stretch, 1.., is taken."""
        return self.base + ((self.after - self.base) // self.every + number) * self.every
