"""The lead's part in saving: asks for snapshots when they are due, has all nodes save them, and hears how it went."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from closeranks.checkpoint import keeper_messages as keeper
from closeranks.checkpoint.tiers import Tiers
from closeranks.cluster.saving_words import Claimed, Delivered, GiveUp, LeaveNow, Missed, Snap, Taken, Trouble
from closeranks.decide import saving, saving_protocol
from closeranks.decide.protocol import StateSaved
from closeranks.events import CheckpointCommitted, SaveFailed, SaveIntervalChosen, SnapshotTaken
from closeranks.run.cadence import Cadence
from closeranks.run.circle import Circle, Role
from closeranks.run.context import Context
from closeranks.run.saver import Saver
from closeranks.run.works import Work, Works

_LATE_S = 5.0  # a delay that a person wants to hear of
_AHEAD_STEPS: Final = 2  # a seat may be a step ahead of what its page shows
_MARGIN_S, _MARGIN_MOST_S = 0.3, 10.0  # for a word to reach every seat of every node
_FINAL_S = 60.0  # for all nodes to deliver the last snapshot
_SAVES_OF_A_TERM: Final = 1 << 20


@dataclass(slots=True)
class _Asked:
    """A snapshot that not every node has delivered."""

    save: int
    step: int
    final: bool
    nodes: frozenset[str]
    asked_s: float
    delivered: dict[str, Delivered] = field(default_factory=dict)


class Saves:
    """The saves of one run, while this node leads them."""

    def __init__(self, context: Context, saver: Saver, circle: Circle, settings: saving.Settings, tiers: Tiers) -> None:
        self._context = context
        self._saver = saver
        self._circle = circle
        self._settings = settings
        self._tiers = tiers
        saver.on_report = self._hear
        self._state = saving.initial(settings)
        self._begun = False
        self._claimed = 0  # the term of the store that was told
        self._next_save = 1
        self._asked: _Asked | None = None
        self._works = Works(context, circle, tiers, self._failed)
        self._cadence = Cadence()
        self._margin_s = self._least_margin_s = _MARGIN_S if circle.several else 0.0
        self._leaving = False
        self._left = False
        self.newest_open_step: Callable[[], int] = lambda: 0

    # --- the lead -----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """This node leads no more, or not yet: nothing of what was under way is ours."""
        self._state = saving.initial(self._settings)
        self._begun = self._leaving = self._left = False
        self._asked = None
        self._works.clear()
        self._next_save = self._context.term * _SAVES_OF_A_TERM + 1  # that no earlier lead has used

    def ready(self) -> None:
        """A keeper is there, or it is certain that there will be none."""
        if self._circle.role is not Role.LEAD:
            return
        term = self._saver.link.store_term
        if term != self._claimed:
            self._claimed = term
            self._circle.tell_all(Claimed(store_term=term))
        self._works.keeper_changed(self._saver.link)
        self._leave_if_handed_over()

    def seated(self) -> None:
        """A term begins."""
        self._works.seated()

    # --- what the run tells -------------------------------------------------------------------------------------

    def begin(self, step: int, *, durable: bool) -> None:
        """A group is about to train after this step."""
        self._begun = True
        self._tell(saving_protocol.SavingBegan(step=step, durable=durable))

    def step_done(self, step: int, period_s: float) -> None:
        """Every seat closed a step, so long after the one before; 0: unknown."""
        if not self._begun:  # by an earlier lead
            self.begin(step - 1, durable=False)
        self._cadence.add(period_s)
        self._tell(saving_protocol.StepPassed(step=step, period_s=period_s))

    def loss_seen(self, *, cold: bool) -> None:
        """A member was lost: what it had not delivered will never come."""
        self._drop_asked()
        self._tell(saving_protocol.LossSeen(cold=cold))

    def tick(self) -> None:
        """Called a few times a second: nodes may be overdue."""
        now_s = time.monotonic()
        asked = self._asked
        if self._circle.several and asked is not None and asked.final and now_s - asked.asked_s > _FINAL_S:
            late = sorted(asked.nodes - asked.delivered.keys())
            self._give_up(asked, f"{', '.join(late)} did not deliver the last state within {_FINAL_S:g} s")
        self._works.look(now_s)

    def let_leave(self, step: int) -> None:
        """The loop is over everywhere: save its end, unless that is done; all leave when keepers have it."""
        self._leaving = True
        stops = self._context.stops
        notice_s = self._context.options.grace_s if stops else None
        self._tell(saving_protocol.EndComing(step=step, why="stopped" if stops else "completed", notice_s=notice_s))
        if self._state.asked is None:
            self._drop_asked()
        self._bring_to_store(step)
        self._leave_if_handed_over()

    def back(self, node: str) -> None:
        """A node was out of reach: what it was told, or said, may be lost."""
        asked = self._asked
        if asked is not None and node not in asked.delivered:
            self._give_up(asked, f"{node} was out of reach")
        if self._left:
            self._circle.tell_all(LeaveNow())

    async def finish(self) -> None:
        """After the keeper has ended."""
        await self._works.finish()

    def _bring_to_store(self, step: int) -> None:
        """The last state may have been taken as an ordinary save, which was not due in a store with an interval."""
        durable = self._tiers.durable
        if durable.every_steps is None and durable.every_s is None:
            return
        snapshot = self._saver.newest_of(step)
        if snapshot is not None and not snapshot.final and self._saver.durable_step != step:
            snapshot.final = True
            self._save(snapshot.save, self._number(), step, dict.fromkeys(self._circle.nodes, ()), final=True)

    def _leave_if_handed_over(self) -> None:
        """The run ends when all have left, so images must not wait for a keeper then: nobody would take them."""
        if self._leaving and self._asked is None and not self._works.unsaved:
            self._leaving, self._left = False, True
            self._circle.tell_all(LeaveNow())

    # --- snapshots ----------------------------------------------------------------------------------------------

    def _save(self, save: int, number: int, step: int, seats: dict[str, tuple[int, ...]], *, final: bool) -> None:
        work = Work(save=save, number=number, step=step, seats=seats, final=final, taken_s=time.monotonic())
        self._works.begin(work, self._saver.link)

    def _number(self) -> int:
        self._next_save += 1
        return self._next_save - 1

    def _ask(self, decision: saving_protocol.TakeSnapshot) -> None:
        self._drop_asked()
        # Other nodes hear of it later, and their seats are about as far as ours. After the loop nobody goes on.
        step = decision.step if decision.final else max(decision.step, self.newest_open_step() + self._ahead())
        now_s = time.monotonic()
        self._asked = _Asked(self._number(), step, decision.final, self._circle.nodes, now_s)
        self._circle.tell_all(Snap(save=self._asked.save, step=step, final=decision.final, unsaved=self._works.unsaved))

    def _ahead(self) -> int:
        """So many steps after the newest open one, no seat will have closed it when it hears of it."""
        return _AHEAD_STEPS + math.ceil(self._cadence.steps_in(self._margin_s))

    def _drop_asked(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            self._circle.tell_all(GiveUp(save=asked.save))

    def delivered(self, node: str, word: Delivered) -> None:
        """A node has copied the state of its seats, or could not."""
        asked = self._asked
        if asked is None or asked.save != word.save:
            return
        if word.problem:
            # Whatever it was, more time does no harm.
            self._margin_s = min(2 * self._margin_s, _MARGIN_MOST_S)
            self._give_up(asked, word.problem)
            return
        asked.delivered[node] = word
        if asked.delivered.keys() < asked.nodes:
            return
        self._asked = None
        self._margin_s = max(self._margin_s / 2, self._least_margin_s)
        parts = asked.delivered.values()
        image_bytes, pause_s = sum(part.image_bytes for part in parts), max(part.pause_s for part in parts)
        self._context.note(SnapshotTaken(save=asked.save, step=asked.step, image_bytes=image_bytes, pause_s=pause_s))
        self._tell(saving_protocol.SnapshotTaken(step=asked.step, pause_s=pause_s))
        seats = {name: part.seats for name, part in asked.delivered.items()}
        self._save(asked.save, asked.save, asked.step, seats, final=asked.final)
        self._leave_if_handed_over()

    def _give_up(self, asked: _Asked, reason: str) -> None:
        self._drop_asked()
        self._saver.problem = reason
        self._tell(saving_protocol.SnapshotDropped(step=asked.step, reason=reason))
        self._leave_if_handed_over()

    # --- saves --------------------------------------------------------------------------------------------------

    def taken(self, node: str, word: Taken) -> None:
        """A node's keeper has its images."""
        self._works.taken(node, word)

    def missed(self, node: str, word: Missed) -> None:
        """A node's part of a save is lost."""
        self._works.missed(node, word)

    def _failed(self, work: Work, problem: str) -> None:
        self._tell(saving_protocol.SaveFailed(step=work.step, problem=problem))

    # --- the save controller ------------------------------------------------------------------------------------

    def _tell(self, fact: saving_protocol.SaveFact) -> None:
        self._state, decisions = saving.step(self._state, fact, time.monotonic())
        for decision in decisions:
            self._carry_out(decision)

    @functools.singledispatchmethod
    def _carry_out(self, decision: saving_protocol.SaveDecision) -> None:
        raise TypeError(f"no way to carry out {type(decision).__name__}")

    @_carry_out.register
    def _(self, decision: saving_protocol.TakeSnapshot) -> None:
        self._ask(decision)

    @_carry_out.register
    def _(self, decision: saving_protocol.IntervalChosen) -> None:
        self._context.note(SaveIntervalChosen(interval_s=decision.interval_s, reason=decision.reason))

    @_carry_out.register
    def _(self, decision: saving_protocol.SaveLost) -> None:
        problem = decision.problem
        if decision.failures > 1:
            problem += f"; {decision.failures} saves in a row have failed, {decision.at_risk_s:.0f} s of work at risk"
        if decision.retry_s > 0:
            problem += f"; the next try is in {decision.retry_s:.0f} s"
        self._context.note(SaveFailed(step=decision.step, problem=problem))
        self._circle.tell_all(Trouble(step=decision.step, cause=decision.problem, problem=problem))

    @_carry_out.register
    def _(self, decision: saving_protocol.SaveHeldBack) -> None:
        if decision.late_s >= _LATE_S:
            self._context.say(f"closeranks: a save is {decision.late_s:.0f} s late: {decision.reason}")

    # --- what the keeper of the lead says -----------------------------------------------------------------------

    @functools.singledispatchmethod
    def _hear(self, report: keeper.FromKeeper) -> None:
        """What does not concern the saves of all nodes is the saver's business."""

    @_hear.register
    def _(self, report: keeper.Sealed) -> None:
        if not self._circle.several:  # each node has a part of it only
            self._context.feed(StateSaved(step=report.step))

    @_hear.register
    def _(self, report: keeper.Freed) -> None:
        work = self._works.freed(report.save)
        if work is not None and work.number == work.save:
            self._tell(saving_protocol.SaveFreed(step=work.step))

    @_hear.register
    def _(self, report: keeper.Committed) -> None:
        work = self._works.get(report.save)
        took_s = report.seconds.get("total", 0.0) if work is None else time.monotonic() - work.taken_s
        self._context.note(
            CheckpointCommitted(
                save=report.save,
                step=report.step,
                generation=report.generation,
                written_bytes=report.written_bytes,
                reused_bytes=report.reused_bytes,
                took_s=took_s,
                seconds=report.seconds,
            )
        )
        self._works.over(report.save)
        self._context.feed(StateSaved(step=report.step))
        self._tell(saving_protocol.SaveCommitted(step=report.step))

    @_hear.register
    def _(self, report: keeper.Kept) -> None:
        self._works.over(report.save)
        # It was not due in the store; to whoever decides on saves it is done all the same.
        self._tell(saving_protocol.SaveCommitted(step=report.step))
