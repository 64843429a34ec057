"""Saving in a run: asks for snapshots when they are due, has the keeper make them last, and hears how it went."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from closeranks import messages
from closeranks.checkpoint import keeper_messages as keeper
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keys import attempt_name
from closeranks.decide import saving, saving_protocol
from closeranks.decide.protocol import EndRun, StateSaved, StepDone
from closeranks.events import (
    CheckpointCommitted,
    SaveFailed,
    SaveIntervalChosen,
    SnapshotTaken,
    StepClosed,
    StoreOpened,
    TierMissed,
    TierReached,
)
from closeranks.run.context import Context
from closeranks.run.generations import Generations
from closeranks.run.keeper_link import KeeperLink
from closeranks.run.vault import Snapshot, Vault
from closeranks.run.worker import Worker

EXIT_NOT_SAVED: Final = 74  # EX_IOERR: the work was done, but its end is not durable
_SAVE_S = 900.0  # a save that takes longer has failed
_LAST_S = 900.0  # for the last save of a run that has completed
_HURRIED_S = 2.0
_LATE_S = 5.0  # a delay that a person wants to hear of


class Saves:
    """The saves of one run with a store. Everything happens in the supervisor's loop; nothing in it waits."""

    def __init__(self, context: Context, vault: Vault, config: KeeperConfig, settings: saving.Settings) -> None:
        self._context = context
        self._vault = vault
        self._config = config
        self._state = saving.initial(settings)
        self.generations = Generations(context, config.store)
        self._link = KeeperLink(context, config, self._hear)
        self._link.on_change = self._publish_waiting
        self._next_save = 1
        self._asked: Snapshot | None = None  # not every seat has delivered
        self._postponed: saving_protocol.TakeSnapshot | None = None  # the final one, until an arena is free
        self._waiting: list[Snapshot] = []  # complete, while no keeper is there to take them
        self._durable_step: int | None = None  # newest that this run made durable
        self._last_step: int | None = None  # after which everybody leaves
        self._leave: Callable[[], None] | None = None
        self._problem = ""  # of the newest save
        self.newest_open_step: Callable[[], int] = lambda: 0

    # --- opening and ending -------------------------------------------------------------------------------------

    async def open(self) -> str:
        """Start the keeper and wait until the store answers; the problem, "" when there is none."""
        return await self._link.open()

    @property
    def store_term(self) -> int:
        """The term under which this run writes to the store."""
        return self._link.store_term

    def let_leave(self, leave: Callable[[], None], step: int) -> None:
        """The loop is over everywhere: save its end, unless that is done, and let everyone leave after the copy."""
        self._leave, self._last_step = leave, step
        notice_s = self._context.options.grace_s if self._context.stops else None
        self._tell(
            saving_protocol.EndComing(
                step=step, why="stopped" if self._context.stops else "completed", notice_s=notice_s
            )
        )
        self._bring_to_store(step)
        self._leave_if_copied()

    def _bring_to_store(self, step: int) -> None:
        """The last state may have been taken as an ordinary save, which was not due in a store with an interval."""
        durable = self._config.tiers.durable
        snapshot = self._vault.of_step(step)
        if durable.every_steps is None and durable.every_s is None:
            return
        if snapshot is not None and not snapshot.final and self._durable_step != step:
            snapshot.final = True
            self._publish(snapshot, self._next_save)
            self._next_save += 1

    async def finish(self, ending: EndRun) -> EndRun:
        """Wait for what is being written, and end the keeper; the ending with what became of the last save."""
        await self._link.finish(self._patience_s(ending))
        return self._judge(ending)

    def _patience_s(self, ending: EndRun) -> float:
        if ending.now:
            return _HURRIED_S
        return self._context.options.grace_s if ending.outcome == "stopped" else _LAST_S

    def _judge(self, ending: EndRun) -> EndRun:
        if self._last_step is None or self._context.library is False:
            return ending
        if self._durable_step is not None and self._durable_step >= self._last_step:
            return replace(ending, reason=f"{ending.reason}; step {self._durable_step} is in the store")
        reason = (
            f"{ending.reason}; its last state, step {self._last_step}, is NOT durable: {self._problem or 'unknown'}"
        )
        return replace(ending, exit_code=ending.exit_code or EXIT_NOT_SAVED, reason=reason)

    # --- what the run tells -------------------------------------------------------------------------------------

    def begin(self, step: int, *, durable: bool) -> None:
        """A group is about to train after this step."""
        self._durable_step = step if durable else None
        self._tell(saving_protocol.SavingBegan(step=step, durable=durable))

    def step_done(self, closed: StepClosed) -> None:
        """Every seat closed a step."""
        self.generations.replays.step_done(closed)
        self._tell(StepDone(step=closed.step, duration_s=closed.closed_mono_s - closed.began_mono_s))

    def loss_seen(self, *, cold: bool) -> None:
        """A member was lost: what it had not delivered will never come."""
        if self._asked is not None:
            self._vault.drop(self._asked.save)
            self._asked = None
        self._tell(saving_protocol.LossSeen(cold=cold))

    def snapped(self, worker: Worker, message: messages.Snapped) -> None:
        """A seat delivered its part, or tells why it could not."""
        snapshot = self._asked
        if snapshot is None or snapshot.save != message.save:
            return
        if message.problem:
            self._give_up(snapshot, message.problem)
            return
        snapshot.data_position = message.data_position
        self._vault.take(message.save, worker, message.image_bytes, message.pause_s)
        if not snapshot.complete:
            return
        self._asked = None
        self._context.note(
            SnapshotTaken(
                save=snapshot.save, step=snapshot.step, image_bytes=snapshot.image_bytes, pause_s=snapshot.pause_s
            )
        )
        self._tell(saving_protocol.SnapshotTaken(step=snapshot.step, pause_s=snapshot.pause_s))
        self._publish(snapshot)
        self._leave_if_copied()

    def tick(self) -> None:
        """Called a few times a second: the keeper may be overdue, or have more to read."""
        self._link.read()
        self.generations.replays.look()

    # --- snapshots ----------------------------------------------------------------------------------------------

    def _ask(self, decision: saving_protocol.TakeSnapshot) -> None:
        if self._asked is not None:
            self._vault.drop(self._asked.save)
            self._asked = None
        found = {seat: self._context.workers.get(proc) for seat, proc in self._context.members.items()}
        workers = {seat: worker for seat, worker in found.items() if worker is not None and worker.alive}
        if len(workers) < len(found):
            self._tell(saving_protocol.SnapshotDropped(step=decision.step, reason="a seat is being replaced"))
            return
        # A seat may be a step ahead of what its page shows; after the loop nobody is.
        step = decision.step if decision.final else max(decision.step, self.newest_open_step() + 2)
        snapshot = self._vault.begin(self._next_save, step, workers)
        self._next_save += 1
        if snapshot is None and decision.final:
            self._postponed = decision  # both arenas are still being written: one of them will be freed
            return
        if snapshot is None:
            reason = "both arenas are still being written"
            self._problem = reason
            self._tell(saving_protocol.SnapshotDropped(step=step, reason=reason))
            return
        snapshot.final = decision.final
        self._asked = snapshot
        for seat, worker in workers.items():
            worker.send(messages.Snapshot(save=snapshot.save, step=step, slot=snapshot.procs[seat][1]))

    def _give_up(self, snapshot: Snapshot, reason: str) -> None:
        self._vault.drop(snapshot.save)
        self._asked = None
        self._problem = reason
        self._tell(saving_protocol.SnapshotDropped(step=snapshot.step, reason=reason))
        self._leave_if_copied()

    def _leave_if_copied(self) -> None:
        leave = self._leave
        if leave is not None and self._asked is None and self._postponed is None:
            self._leave = None
            leave()

    def _publish(self, snapshot: Snapshot, save: int | None = None) -> None:
        """Hand the images to the keeper, as the save that the snapshot was taken for or as another one."""
        if self._link.closed:
            self._refuse(snapshot)
            return
        if not self._link.ready:
            self._waiting.append(snapshot)
            return
        seats = tuple(sorted(snapshot.images))
        message = keeper.Publish(
            save=snapshot.save if save is None else save,
            step=snapshot.step,
            attempt=attempt_name(self._link.store_term, snapshot.step, secrets.token_hex(4)),
            writers=seats,
            world=len(seats),
            lead=True,
            layout="one part for each seat",
            deadline_s=_SAVE_S,
            run_term=self._context.term,
            data_position=snapshot.data_position,
            versions=self._versions(),
            tiers=tuple(tier.name for tier in self._config.tiers.tiers) if snapshot.final else None,
        )
        self._link.publish(message, [snapshot.images[seat].fd for seat in seats])

    def _publish_waiting(self) -> None:
        """A keeper is there again, or it is certain that there will be none."""
        waiting, self._waiting = self._waiting, []
        for snapshot in waiting:
            if self._vault.get(snapshot.save) is not None:
                self._publish(snapshot)

    def _refuse(self, snapshot: Snapshot) -> None:
        """No keeper can be had any more: every save fails from now on, and says so."""
        self._vault.free(snapshot.save)
        self._tell(saving_protocol.SaveFailed(step=snapshot.step, problem=self._link.closed))

    def _versions(self) -> dict[str, str]:
        """What the workers said of themselves when they joined."""
        told = next((w.facts for w in self._context.living() if w.facts is not None), {})
        return {name: told[name] for name in ("python", "torch", "script") if name in told}

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
        self._problem = decision.problem
        self._context.note(SaveFailed(step=decision.step, problem=problem))
        for proc in self._context.members.values():
            worker = self._context.workers.get(proc)
            if worker is not None:
                worker.send(messages.SaveProblem(step=decision.step, problem=problem))

    @_carry_out.register
    def _(self, decision: saving_protocol.SaveHeldBack) -> None:
        if decision.late_s >= _LATE_S:
            self._context.say(f"closeranks: a save is {decision.late_s:.0f} s late: {decision.reason}")

    # --- what the keeper says -----------------------------------------------------------------------------------

    @functools.singledispatchmethod
    def _hear(self, report: keeper.FromKeeper) -> None:
        """Progress, and what became of the other tiers, is for the screen."""

    @_hear.register
    def _(self, report: keeper.Opened) -> None:
        self.generations.opened(report)
        self._context.note(
            StoreOpened(
                store=self._config.store,
                store_term=report.term,
                generations=len(self.generations.all),
                newest_step=self.generations.newest_step,
            )
        )

    @_hear.register
    def _(self, report: keeper.Refused) -> None:
        if report.fenced:
            self._context.fail(f"another run has taken the store over: {report.problem}")
        else:
            self._context.say(f"closeranks: {report.problem}")

    @_hear.register
    def _(self, report: keeper.Sealed) -> None:
        self._vault.seal(report.save)
        self._context.feed(StateSaved(step=report.step))

    @_hear.register
    def _(self, report: keeper.Freed) -> None:
        snapshot = self._vault.get(report.save)
        self._vault.free(report.save)
        if snapshot is not None:
            self._tell(saving_protocol.SaveFreed(step=snapshot.step))
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            self._ask(postponed)

    @_hear.register
    def _(self, report: keeper.Committed) -> None:
        snapshot = self._vault.get(report.save)
        now_s = time.monotonic()
        took_s = report.seconds.get("total", 0.0) if snapshot is None else now_s - snapshot.taken_mono_s
        self._durable_step, self._problem = report.step, ""
        self._link.committed()
        self.generations.committed(report.generation, report.step)
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
        self._context.feed(StateSaved(step=report.step))
        self._tell(saving_protocol.SaveCommitted(step=report.step))

    @_hear.register
    def _(self, report: keeper.Kept) -> None:
        # It was not due in the store; to whoever decides on saves it is done all the same.
        self._link.committed()
        self._tell(saving_protocol.SaveCommitted(step=report.step))

    @_hear.register
    def _(self, report: keeper.SaveLost) -> None:
        self._tell(saving_protocol.SaveFailed(step=report.step, problem=report.problem))

    @_hear.register
    def _(self, report: keeper.TierKept) -> None:
        self._context.note(
            TierReached(
                step=report.step,
                tier=report.tier,
                written_bytes=report.written_bytes,
                took_s=report.seconds,
                problem=report.weakened,
            )
        )

    @_hear.register
    def _(self, report: keeper.TierMissed) -> None:
        self._context.note(TierMissed(step=report.step, tier=report.tier, problem=report.problem))

    @_hear.register
    def _(self, report: keeper.Dropped) -> None:
        self.generations.dropped(report)

    @_hear.register
    def _(self, report: keeper.Drilled) -> None:
        self.generations.drilled(report)
