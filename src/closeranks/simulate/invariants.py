"""What must hold of every virtual run, checked apart from the scenarios and from the world's own books.

A broken invariant of ours is a defect and is raised; a broken promise (RPO, RTO) is a finding and is listed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

from closeranks.decide.budgets import Intensity
from closeranks.decide.protocol import BeginTerm, Decision, EndRun, Fact, InterruptTerm, Isolate, StartGroup, StartProc
from closeranks.decide.state import Settings
from closeranks.events import AnyEvent, Decided, IncidentClosed, IncidentOpened, Rung
from closeranks.simulate.body import Body
from closeranks.simulate.saves import Restored

_PROBLEMS_MOST: Final = 20
_RELATIVE: Final = 1e-9
_FROM_SCRATCH: Final = (Rung.COLD_RESTART, Rung.ROLL_BACK)


class InvariantBroken(AssertionError):
    """The controller or the world did what must never happen."""


class Checks:
    """Watches one run: what is told, decided, noted and trained."""

    def __init__(self, settings: Settings, *, rpo_s: float, rto_s: float) -> None:
        self._settings = settings
        self._rpo_s, self._rto_s = rpo_s or math.inf, rto_s or math.inf
        self._begun = 0  # newest term that began
        self._ever = 0  # newest process number
        self._colds = 0
        self._incidents_s: list[float] = []
        self._ended = False
        self._last_s = 0.0
        self._useful = 0
        self._frontier = -1  # newest step that was closed in the newest stretch
        self._restored = -1  # where a new group was told to go on
        self._stood: list[tuple[float, float]] = []  # when training went on, and how long it had stood still
        self.incidents = 0
        self.rungs: Counter[str] = Counter()
        self.steps_lost = 0
        self.worst_loss_s = 0.0
        self.worst_return_s = 0.0
        self.problems: list[str] = []

    # --- the controller -----------------------------------------------------------------------------------------

    def told(self, fact: Fact, now_s: float) -> None:
        """Time never runs backwards for the controller."""
        if now_s < self._last_s - 1e-9 * max(1.0, now_s):
            raise InvariantBroken(f"{type(fact).__name__} of {now_s:g} s is told after {self._last_s:g} s")
        self._last_s = now_s

    def decided(self, decision: Decision, bodies: Mapping[int, Body], now_s: float) -> None:
        """Terms only grow, the dead stay dead, no number is given twice."""
        if self._ended and not isinstance(decision, EndRun):
            raise InvariantBroken(f"a decision after the end: {decision}")
        if isinstance(decision, EndRun):
            self._ended = True
        elif isinstance(decision, StartGroup | StartProc):
            numbers = decision.procs if isinstance(decision, StartGroup) else (decision.proc,)
            if min(numbers) <= self._ever:
                raise InvariantBroken(f"{decision} uses a process number again at {now_s:g} s")
            self._ever = max(numbers)
        elif isinstance(decision, BeginTerm | InterruptTerm):
            self._dead(decision, decision.procs, bodies)
        elif isinstance(decision, Isolate):
            self._dead(decision, (decision.proc,), bodies)
        if isinstance(decision, BeginTerm):
            self._term(decision, bodies)

    def _dead(self, decision: Decision, numbers: tuple[int, ...], bodies: Mapping[int, Body]) -> None:
        gone = [number for number in numbers if number not in bodies or bodies[number].told_end]
        if gone:
            raise InvariantBroken(f"{decision} names processes {gone}, which were reported to be gone")

    def _term(self, decision: BeginTerm, bodies: Mapping[int, Body]) -> None:
        if decision.term <= self._begun:
            raise InvariantBroken(f"term {decision.term} begins after term {self._begun}")
        self._begun = decision.term
        members = set(decision.procs)
        if len(members) != self._settings.seats:
            raise InvariantBroken(f"term {decision.term} has {len(members)} members for {self._settings.seats} seats")
        for body in bodies.values():
            if body.number not in members and body.seat is not None and body.alive:
                raise InvariantBroken(
                    f"term {decision.term} begins while p{body.number} still lives in seat {body.seat}"
                )

    def noted(self, event: AnyEvent, now_s: float) -> None:
        """Budgets are counted a second time here."""
        match event:
            case IncidentOpened():
                self.incidents += 1
                self._incidents_s.append(now_s)
            case IncidentClosed():
                self.steps_lost += event.steps_lost
            case Decided():
                self.rungs[event.rung.value] += 1
                self._budget(event, now_s)

    def _budget(self, event: Decided, now_s: float) -> None:
        limits = self._settings.limits
        if event.rung is Rung.STOP:
            return
        limit: Intensity = limits.incidents
        self._incidents_s = [at_s for at_s in self._incidents_s if now_s - at_s < limit.period_s]
        if len(self._incidents_s) > limit.most:
            raise InvariantBroken(
                f"{event.rung} for incident {event.incident}, the {len(self._incidents_s)}th within "
                f"{limit.period_s:g} s; the budget is {limit.most}"
            )
        if event.rung in _FROM_SCRATCH:
            self._colds += 1
            most = limits.cold_restarts + limits.start_restarts * (1 + self._colds)
            if self._colds > most:
                raise InvariantBroken(f"restart {self._colds} from nothing; the budget is {limits.cold_restarts}")

    # --- training -----------------------------------------------------------------------------------------------

    def opened(self, after: int, highest: int) -> None:
        """Training goes on from a state that there is: no step is skipped."""
        if after > highest or after not in (self._frontier, self._restored):
            raise InvariantBroken(
                f"training goes on after step {after}; the last one closed is {self._frontier}, "
                f"state was restored after {self._restored}, the newest ever is {highest}"
            )

    def trained(self, after: int, count: int, highest: int) -> None:
        """No step counts twice."""
        self._useful += max(0, after + count - max(after, self._useful - 1))
        self._frontier = after + count
        if self._useful != highest + 1:
            raise InvariantBroken(f"{self._useful} steps counted, the newest is {highest}")

    def restored(self, found: Restored, struck_s: float, highest: int, *, why: str) -> None:
        """A new group goes on from here: the promise is about what that gives up."""
        self._restored = found.step
        lost_s = struck_s - found.taken_s - self._stood_since(found.taken_s) if found.step < highest else 0.0
        self.worst_loss_s = max(self.worst_loss_s, lost_s)
        if lost_s > self._rpo_s:
            self._say(f"RPO: {lost_s:.1f} s of training were lost by {why}, {self._rpo_s:g} s were promised")

    def _stood_since(self, taken_s: float) -> float:
        """Seconds without training since then: there was no work in them that could be lost."""
        return sum(length_s for _, length_s in itertools.takewhile(lambda one: one[0] > taken_s, reversed(self._stood)))

    def returned(self, after_s: float, now_s: float) -> None:
        """Training goes on."""
        self._stood.append((now_s, after_s))
        self.worst_return_s = max(self.worst_return_s, after_s)
        if after_s > self._rto_s:
            self._say(f"RTO: training went on {after_s:.1f} s after a loss, {self._rto_s:g} s were promised")

    def finished(self, wall_s: float, booked_s: float, highest: int) -> None:
        """The goodput identity: every second is in the book once."""
        if abs(wall_s - booked_s) > _RELATIVE * wall_s + 1e-6:
            raise InvariantBroken(f"the parts add up to {booked_s:.6f} s, the run took {wall_s:.6f} s")
        if self._useful != highest + 1:
            raise InvariantBroken(f"{self._useful} steps counted, the newest is {highest}")

    def _say(self, problem: str) -> None:
        if len(self.problems) < _PROBLEMS_MOST:
            self.problems.append(problem)
