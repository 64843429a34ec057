"""The virtual cluster: one run in virtual time, decided by the real controller.

The world knows the truth, the controller only what it is told. Between two events training is a ``Stretch`` in closed
form, so that a run of months costs no more than its failures.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from closeranks.decide import controller
from closeranks.decide.protocol import Begun, Fact, Note, Origin, ProcFinished, StateSaved, StepDone, StopAsked, Tick
from closeranks.decide.save_interval import EverySteps
from closeranks.decide.saving_protocol import IntervalChosen
from closeranks.decide.state import Life
from closeranks.events import AnyEvent, IncidentClosed, SaveIntervalChosen
from closeranks.simulate.alarms import next_alarm_s
from closeranks.simulate.body import Body
from closeranks.simulate.book import Book, Outcome, Part
from closeranks.simulate.chooser import Chooser, SaveCost
from closeranks.simulate.fleet import Fleet
from closeranks.simulate.hands import Hands
from closeranks.simulate.invariants import Checks
from closeranks.simulate.laggard import Laggard
from closeranks.simulate.saves import Restored, Saves
from closeranks.simulate.setup import Setup
from closeranks.simulate.stretch import Stretch
from closeranks.simulate.strikes import Strike
from closeranks.simulate.striking import Striking
from closeranks.simulate.tape import Tape

_TOLD_FIRST: Final = 4  # steps of each stretch that the controller is told of one by one


class World:
    """One run. ``run`` may be called once."""

    def __init__(self, setup: Setup, strikes: Sequence[Strike], tape: Tape | None = None) -> None:
        self.setup = setup
        self.tape = tape
        self.state = controller.initial(setup.settings)
        self.now_s = 0.0
        self.bodies: dict[int, Body] = {}
        self.seats: dict[int, Body] = {}
        self.going: int | None = None  # the term that was told to go on
        self.stretch: Stretch | None = None
        self.highest = -1  # newest step that was ever closed
        self.slow = 1.0  # factor of a step
        self.store_factor = 1.0
        self.store_back_s = 0.0
        self.heals_s = 0.0  # until then members cannot reach each other
        self.tainted_since: int | None = None  # states after this step are corrupt
        self.trusted_before_s = 0.0  # saves that were taken later are not, since corruption was found
        self.struck_s: float | None = None  # when training was last broken, until it goes on
        self.fleet = Fleet(setup.nodes, setup.spare_nodes)
        self.saves = Saves(setup.tiers)
        self.book = Book()
        self.checks = Checks(setup.settings, rpo_s=setup.rpo_s, rto_s=setup.rto_s)
        self.bugs: set[int] = set()
        self.strikes_felt = 0
        self.base = -1  # step after which the newest save was due
        self._strikes = sorted(strikes, key=lambda strike: strike.at_s)
        self._next_strike = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._ended: tuple[str, str] | None = None
        self._part, self._since_s = Part.START_UP, 0.0
        self._carried_s = 0.0  # what the open attempt took more before it went on under another pace
        self._told = 0  # steps of the stretch
        self._told_saved = -1
        self._told_pauses = 0  # of the stretch
        self._begun_s = 0.0  # when the first attempt of the stretch began, perhaps under another pace
        self._facts = 0
        self._chooser = self._new_chooser()
        self.hands = Hands(self)
        self.striking = Striking(self)
        self.laggard = Laggard(self)

    # --- running ------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run to the end; what became of it."""
        self.at(0.0, self.feed, Begun(saved_step=None))
        if math.isfinite(self.setup.horizon_s):
            self.at(self.setup.horizon_s, self._stop)
        self._queue_strike()
        if self.tape is not None:
            self.tape.begin(self.setup, self.now_s)
        while self._ended is None:
            alarm_s = math.inf if self.stretch is not None and self.calm else next_alarm_s(self.state, self.now_s)
            if not self._queue and math.isinf(alarm_s):
                raise AssertionError(f"nothing can happen any more in life {self.state.life} at {self.now_s:g} s")
            if not self._queue or alarm_s < self._queue[0][0]:
                self.now_s = alarm_s
                self.feed(Tick())
                continue
            at_s, _, act, arguments = heapq.heappop(self._queue)
            self.now_s = max(self.now_s, at_s)
            act(*arguments)
        return self._outcome(*self._ended)

    def at(self, at_s: float, act: Callable[..., None], *arguments: Any) -> None:
        """Do it then."""
        self._order += 1
        heapq.heappush(self._queue, (at_s, self._order, act, arguments))

    def after(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        """Do it so much later."""
        self.at(self.now_s + delay_s, act, *arguments)

    @property
    def calm(self) -> bool:
        """Whether the controller knows of nothing that is wrong."""
        state = self.state
        return state.life is Life.RUNNING and state.incident is None and state.poison is None

    def _queue_strike(self) -> None:
        if self._next_strike < len(self._strikes):
            strike = self._strikes[self._next_strike]
            self._next_strike += 1
            self.at(strike.at_s, self._strike, strike)

    def _strike(self, strike: Strike) -> None:
        self.striking.strike(strike)
        self._queue_strike()

    def _stop(self) -> None:
        self.halt(lost=False)
        self.feed(StopAsked(now=True))

    # --- the controller -----------------------------------------------------------------------------------------

    def feed(self, fact: Fact) -> None:
        """Tell the controller, and carry out what it decides."""
        if self._ended is not None:
            return
        if self.stretch is not None and type(fact) is not StepDone:
            self.settle()
        self._accrue()
        self._facts += 1
        self.checks.told(fact, self.now_s)
        self.state, decisions = controller.step(self.state, fact, self.now_s)
        for decision in decisions:
            if isinstance(decision, Note):
                self.note(decision.event)
            else:
                self.checks.decided(decision, self.bodies, self.now_s)
                self.hands.carry_out(decision)
        self._part = self._part_now()

    def note(self, event: AnyEvent) -> None:
        """Write an event to the journal, where there is one."""
        self.checks.noted(event, self.now_s)
        if isinstance(event, IncidentClosed):
            self.laggard.recovered(event.first_step_s)
            if self._chooser is not None and self.restarted_cold:
                self._chooser.lost(self.now_s)
        if self.tape is not None:
            self.tape.note(event, self.now_s, self.state.group.term)

    def end(self, outcome: str, reason: str) -> None:
        """The run is over."""
        self._accrue()
        if self.tape is not None:
            self.tape.end(self, outcome, reason)
        self._ended = (outcome, reason)

    @property
    def restarted_cold(self) -> bool:
        """Whether the newest group began after another one."""
        return self.hands.groups > 1

    # --- training -----------------------------------------------------------------------------------------------

    def together(self, term: int) -> bool:
        """Whether every seat has a process of this term that acts."""
        seats = self.setup.settings.seats
        members = [body for body in self.seats.values() if body.term == term]
        return len(members) == seats and all(body.acts and not body.paused for body in members)

    def members(self, term: int) -> list[Body]:
        """The processes of a term, by seat."""
        return [self.seats[seat] for seat in sorted(self.seats) if self.seats[seat].term == term]

    def train(self, term: int) -> None:
        """Every seat has opened its next attempt now."""
        if self.going != term or self._ended is not None:
            return
        if not self.together(term):
            self.striking.missed(term)
            return
        self._accrue()
        if self.struck_s is not None:
            self.checks.returned(self.now_s - self.struck_s, self.now_s)
            self.struck_s = None
        members = self.members(term)
        if self.tape is not None:
            self.tape.resumed(self.state, members, self.now_s)
        if self._chooser is not None and self._chooser.fresh:
            self._chooser.begin(self.now_s)
        self._carried_s = 0.0
        self.laggard.disturbed()
        self._begun_s = self.now_s
        self._open(self.now_s, members[0].closed)

    def _open(self, begin_s: float, after: int) -> None:
        setup = self.setup
        self.checks.opened(after, self.highest)
        factor = self.store_factor if math.isfinite(self.store_factor) else 1.0
        self.stretch = Stretch(
            begin_s=begin_s,
            after=after,
            step_s=setup.step_s * self.slow,
            every=self._every(),
            base=-1 if isinstance(setup.every, EverySteps) else min(self.base, after),
            pause_s=setup.pause_s * factor,
        )
        self._since_s, self._told, self._told_pauses = begin_s, 0, 0
        self._queue_step(1)
        bug = min((step for step in self.bugs if step > after), default=None)
        if bug is not None:
            half_s = self.stretch.step_s / 2
            self.at(self.stretch.opened_s(bug - 1 - after) + half_s, self.striking.bug, self.stretch, bug)
        if setup.until and after + 1 >= setup.until:
            self._finish_if_done(self.stretch)
        elif setup.until:
            self.at(self.stretch.closed_s(setup.until - 1 - after), self._finish_if_done, self.stretch)
        if self.stretch is not None:
            self.laggard.opened(self.stretch)

    def _queue_step(self, count: int) -> None:
        if self.stretch is not None and (count <= _TOLD_FIRST or self.setup.every_step):
            self.at(self.stretch.closed_s(count), self._step, self.stretch, count)

    def _step(self, stretch: Stretch, count: int) -> None:
        if self.stretch is not stretch or (self.setup.until and stretch.after + count >= self.setup.until):
            return
        self.tell_step(count)
        if self.stretch is stretch:
            self._queue_step(count + 1)

    def tell_step(self, count: int) -> None:
        """The controller hears that a step of the stretch is closed, with the time of its closing."""
        stretch = self.stretch
        if stretch is None or count <= self._told:
            return
        self._told = count
        now_s, self.now_s = self.now_s, stretch.closed_s(count)
        if self.tape is not None:
            step, began_s = stretch.after + count, self._begun_s if count == 1 else stretch.opened_s(count - 1)
            self.tape.closed(step, began_s, self.now_s, repeated=step <= self.highest)
            self._queue_landing(stretch, count)
        self.feed(StepDone(step=stretch.after + count, duration_s=stretch.step_s))
        self.now_s = now_s

    def _queue_landing(self, stretch: Stretch, count: int) -> None:
        """The journal tells of a save when it is durable, if nothing comes between."""
        if math.isfinite(self.store_factor) and stretch.saves(count) > stretch.saves(count - 1):
            slowest_s = max(tier.write_s for tier in self.setup.tiers)
            taken_s = stretch.opened_s(count)
            self.at(taken_s + slowest_s * self.store_factor, self._landed, stretch, count, taken_s)

    def _landed(self, stretch: Stretch, count: int, taken_s: float) -> None:
        if self.stretch is stretch and self.tape is not None:
            self._tell_pauses(stretch, stretch.saves(count), self.now_s)
            self.tape.saved(stretch.after + count, stretch.pause_s, taken_s, self.now_s)

    def _tell_pauses(self, stretch: Stretch, most: int, upto_s: float) -> None:
        """The journal tells of the pauses for the saves of the stretch, up to that number, that are over by then."""
        for number in range(self._told_pauses + 1, most + 1):
            step = stretch.save_step(number)
            over_s = stretch.opened_s(step - stretch.after)
            if self.tape is not None and over_s <= upto_s:
                self.tape.snapshot(step, stretch.pause_s, over_s)
                self._told_pauses = number

    def settle(self) -> None:
        """Tell of the newest step that is closed by now."""
        if self.stretch is not None:
            self.tell_step(self._count())

    def _count(self) -> int:
        if self.stretch is None:
            return 0
        count = self.stretch.closed_by(self.now_s)
        return min(count, self.setup.until - 1 - self.stretch.after) if self.setup.until else count

    def halt(self, *, lost: bool) -> None:
        """Training stands still from now on; the attempt in flight is lost. Nothing where it does not run."""
        if self.stretch is None:
            return
        self.settle()
        stretch, count = self.stretch, self._count()
        self.stretch = None
        opened_s = stretch.opened_s(count)
        open_s = max(0.0, self.now_s - opened_s)
        pause_s = stretch.pause_s * stretch.saves(count)
        if count and self.now_s < opened_s:  # within the pause for a save, which is lost with what would have followed
            open_s, pause_s = self.now_s - stretch.closed_s(count), pause_s - stretch.pause_s
        elif self.now_s < opened_s:  # within one that was booked whole as the pace changed
            pause_s -= opened_s - self.now_s
        self._book(stretch, count, pause_s, self.now_s)
        if not count:
            open_s += self._carried_s  # it counts as what it was: lost
            self._carry(stretch.after, -self._carried_s)
        self.book.add(Part.LOST, open_s)
        if self.tape is not None:
            self.tape.halted(self.seats.values(), open_s)
        self._since_s, self._part = self.now_s, Part.DETECT
        for body in self.seats.values():
            body.closed = stretch.after + count
        self._cover(stretch, self.now_s, lost=lost)
        if lost:
            self.struck_s = self.now_s

    def split(self, change: Callable[[], None]) -> None:
        """The pace of training or of its saves changes now; the attempt in flight goes on with it."""
        stretch = self.stretch
        if stretch is None:
            change()
            return
        self.settle()
        count = self._count()
        opened_s = stretch.opened_s(count)
        done = max(0.0, self.now_s - opened_s) / stretch.step_s
        upto_s = max(self.now_s, opened_s)  # a pause that has begun is part of what ends
        self._book(stretch, count, stretch.pause_s * stretch.saves(count), upto_s)
        self._cover(stretch, upto_s, lost=False)
        change()
        new_step_s = self.setup.step_s * self.slow
        more_s = done * (stretch.step_s - new_step_s)
        self._carried_s = more_s if count else self._carried_s + more_s
        self._carry(stretch.after + count, more_s)
        self._begun_s = opened_s if count else self._begun_s
        self._open(upto_s - done * new_step_s, stretch.after + count)

    def _carry(self, after: int, more_s: float) -> None:
        """The open attempt takes so much more than its whole length under the present pace says."""
        part = Part.USEFUL if after >= self.highest else Part.REPEATED
        self.book.add(part, more_s)
        if self.tape is not None:
            self.tape.carried(self.seats.values(), part is Part.REPEATED, more_s)

    def _book(self, stretch: Stretch, count: int, pause_s: float, at_s: float) -> None:
        repeated = min(max(self.highest - stretch.after, 0), count)
        self.book.add(Part.USEFUL, (count - repeated) * stretch.step_s)
        self.book.add(Part.REPEATED, repeated * stretch.step_s)
        self.book.add(Part.SAVING, pause_s)
        self.highest = max(self.highest, stretch.after + count)
        self.checks.trained(stretch.after, count, self.highest)
        if self.tape is not None:
            # A report needs those within repeated work, and the one before an attempt that is lost.
            newest = stretch.saves(count)
            self._tell_pauses(stretch, stretch.saves(repeated), at_s)
            if newest > stretch.saves(count - 1):
                self._told_pauses = max(self._told_pauses, 0 if self.setup.every_step else newest - 1)
                self._tell_pauses(stretch, newest, at_s)
            worked = ((count - repeated) * stretch.step_s, repeated * stretch.step_s, pause_s)
            self.tape.trained(self.seats.values(), worked, at_s)

    def _cover(self, stretch: Stretch, upto_s: float, *, lost: bool) -> None:
        taken = self.saves.taken
        self.saves.cover(stretch, upto_s, store_factor=self.store_factor, lost=lost)
        if self.saves.taken > taken:
            self.base = stretch.save_step(self.saves.taken - taken)
        newest = self.saves.newest()
        if newest is not None and newest.step != self._told_saved:
            self._told_saved = newest.step
            if self.tape is not None and not self.setup.every_step:
                self.tape.saved(newest.step, stretch.pause_s, newest.taken_s + stretch.pause_s, self.now_s)
            self.feed(StateSaved(step=newest.step))

    def save_now(self, step: int, taken_s: float) -> None:
        """A save out of turn."""
        self.saves.note(step, taken_s)
        self._told_saved = step
        self.feed(StateSaved(step=step))

    def _finish_if_done(self, stretch: Stretch) -> None:
        if self.stretch is not stretch:
            return
        last = self.setup.until - 1
        count = last - stretch.after
        self.tell_step(count)
        self.stretch = None
        pause_s = stretch.pause_s * stretch.saves(max(0, count - 1))
        final_s = stretch.pause_s if self.setup.tiers else 0.0  # the end is saved, too
        self.now_s += final_s
        self._book(stretch, count, pause_s + final_s, self.now_s)
        self._since_s = self.now_s
        if self.setup.tiers and self.tape is not None:
            self.tape.saved(last, stretch.pause_s, self.now_s, self.now_s)
        for body in list(self.seats.values()):
            body.closed = last
            self.feed(ProcFinished(proc=body.number, step=last))

    def restore(self, origin: Origin) -> Restored:
        """What a new group begins with, found anew among what is left."""
        found = self.saves.restore(origin, self.trusted_before_s)
        self.base = found.step
        if origin is Origin.VERIFIED:
            self.trusted_before_s = found.taken_s  # should that not be old enough, the next one is older still
        if self.tainted_since is not None:
            if found.step <= self.tainted_since:
                self.tainted_since = None
            elif origin is Origin.VERIFIED:
                self.after(self.setup.distrust_s + self.setup.step_s, self.striking.corruption_found, False)
        if self.struck_s is not None:
            why = "going back behind corruption" if origin is Origin.VERIFIED else "a restart"
            self.checks.restored(found, self.struck_s, self.highest, why=why)
        return found

    # --- saving -------------------------------------------------------------------------------------------------

    def _new_chooser(self) -> Chooser | None:
        setup = self.setup
        if setup.every is not None or not setup.tiers:
            return None
        durable_s = max(tier.write_s for tier in setup.tiers)
        cost = SaveCost(pause_s=setup.pause_s, durable_s=durable_s, step_s=setup.step_s)
        return Chooser(setup.saving, cost, self._chosen)

    def _chosen(self, choice: IntervalChosen) -> None:
        self.note(SaveIntervalChosen(interval_s=choice.interval_s, reason=choice.reason))

    def _every(self) -> int:
        every = self.setup.every
        if not self.setup.tiers:
            return 0
        if isinstance(every, EverySteps):
            return every.steps
        if every is not None:
            return max(1, round(every.seconds / self.setup.step_s))
        return max(1, round(self._chooser.interval_s / self.setup.step_s)) if self._chooser is not None else 0

    # --- accounts -----------------------------------------------------------------------------------------------

    def _accrue(self) -> None:
        if self.stretch is None:
            self.book.add(self._part, self.now_s - self._since_s)
            self._since_s = self.now_s

    def look(self) -> None:
        """What the time goes into may have changed without a word to the controller."""
        self._accrue()
        self._part = self._part_now()

    def _part_now(self) -> Part:
        state = self.state
        if self.struck_s is None and self.highest < 0:
            return Part.START_UP
        if state.life is Life.JOINING:
            return Part.NO_NODES if self.hands.waits else Part.RESTART
        if state.life is Life.RUNNING:
            return Part.DETECT if state.incident is None else Part.LOAD
        return Part.NO_NODES if self.hands.waits else Part.RECOVER

    def _outcome(self, outcome: str, reason: str) -> Outcome:
        seconds = {part: spent_s for part, spent_s in self.book.seconds.items() if spent_s}
        self.checks.finished(self.now_s, sum(seconds.values()), self.highest)
        return Outcome(
            outcome=outcome,
            reason=reason,
            wall_s=self.now_s,
            steps=self.highest + 1,
            useful_s=seconds.get(Part.USEFUL, 0.0),
            seconds=seconds,
            incidents=self.checks.incidents,
            strikes=self.strikes_felt,
            rungs=dict(sorted(self.checks.rungs.items())),
            steps_lost=self.checks.steps_lost,
            worst_loss_s=self.checks.worst_loss_s,
            worst_return_s=self.checks.worst_return_s,
            facts=self._facts,
            events=self._order + self._facts,
            problems=tuple(self.checks.problems),
        )
