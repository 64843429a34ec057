"""Which step is closed by every seat: merges the rings of all vitals pages. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from closeranks.events import StepClosed
from closeranks.signs import StepMark, mean_of


class Tally:
    """Collects the marks of all seats and tells, in order, which steps are complete."""

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._ours = frozenset(range(seats))
        self._open: dict[int, dict[int, StepMark]] = {}
        self._newest = -1
        self._told = -1  # newest step that was told: what a seat closes of it later, it closes for itself
        self._settled = -1  # the step of the newest restore plan: whoever closes it later closes it for all

    @property
    def newest_step(self) -> int:
        """The highest step that was ever closed by all, -1 before the first."""
        return self._newest

    def expect(self, ours: Iterable[int], seats: int) -> None:
        """From now on ``ours`` of all seats are those of this node; it is theirs that are waited for."""
        self._ours, self._seats = frozenset(ours), seats

    def restart(self) -> None:
        """A group starts from nothing: marks of the group before it are void."""
        self._open.clear()
        self._told = self._settled = -1

    def add(self, seat: int, marks: Iterable[StepMark]) -> None:
        """Note what one seat has closed."""
        for mark in marks:
            if mark.step > self._told:
                self._open.setdefault(mark.step, {})[seat] = mark

    def take_closed(self) -> tuple[StepClosed, ...]:
        """The steps that are complete now and were not before."""
        if not self._ours:
            return ()
        return self._take(
            [step for step, marks in self._open.items() if step <= self._settled or self._ours <= marks.keys()]
        )

    def settle(self, step: int, last_losses: Mapping[int, float]) -> tuple[StepClosed, ...]:
        """A restore plan goes on after ``step``: seats without it get its result; later marks are void.

        ``last_losses``: by seat, what occupants that died in the step had reported for it.
        """
        self._told, self._settled = min(self._told, step), step
        self._open = {number: marks for number, marks in self._open.items() if number <= step}
        for seat, loss in last_losses.items():
            marks = self._open.get(step, {})
            if marks and seat not in marks:
                closed = next(iter(marks.values()))
                marks[seat] = closed._replace(loss=loss)
        return self._take(list(self._open))

    def _take(self, steps: list[int]) -> tuple[StepClosed, ...]:
        return tuple(self._close(step, self._open.pop(step)) for step in sorted(steps))

    def _close(self, step: int, marks: dict[int, StepMark]) -> StepClosed:
        self._told = max(self._told, step)
        repeated = step <= self._newest
        self._newest = max(self._newest, step)
        losses = (marks[seat].loss if seat in marks else math.nan for seat in range(self._seats))
        return StepClosed(
            step=step,
            began_mono_s=min(mark.opened_ns for mark in marks.values()) / 1e9,
            closed_mono_s=max(mark.closed_ns for mark in marks.values()) / 1e9,
            losses=tuple(loss if math.isfinite(loss) else None for loss in losses),
            repeated=repeated,
            seats=() if len(self._ours) == self._seats else tuple(sorted(self._ours)),
            own_s=_own_s(marks, self._seats),
            grad_norm=mean_of(mark.grad_norm for mark in marks.values()),
        )


def _own_s(marks: Mapping[int, StepMark], seats: int) -> tuple[float | None, ...]:
    if not any(mark.own_ns for mark in marks.values()):
        return ()
    own_ns = (marks[seat].own_ns if seat in marks else 0 for seat in range(seats))
    return tuple(round(ns / 1e9, 6) if ns else None for ns in own_ns)
