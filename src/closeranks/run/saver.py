"""This node's part in saving: its seats copy their state, its keeper makes the copies last. The lead says when."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable

from closeranks import messages
from closeranks.checkpoint import keeper_messages as keeper
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.cluster.saving_words import (
    Delivered,
    GiveUp,
    Missed,
    PublishNow,
    Snap,
    Taken,
    Trouble,
)
from closeranks.decide.protocol import EndRun
from closeranks.events import StoreOpened, TierMissed, TierReached
from closeranks.nodes.probes import Life
from closeranks.run.circle import Circle, Role
from closeranks.run.context import Context
from closeranks.run.disowning import disown
from closeranks.run.generations import Generations
from closeranks.run.keeper_link import KeeperLink
from closeranks.run.last_save import LastSave
from closeranks.run.vault import Snapshot, Vault
from closeranks.run.worker import Worker

_SAVE_S = 900.0  # a save that takes longer has failed
_LAST_S = 900.0  # for the last save of a run that has completed
_LEAD_S = 30.0  # of silence at the end of a run: then the lead is gone
_ASK_S = 1.0
_HURRIED_S = 2.0
_LOOK_S = 0.1
_AGAIN_S, _AGAIN_MOST_S = 1.0, 60.0  # between tries to open a store, doubled each time


class Saver:
    """The saver of one node. Everything happens in the supervisor's loop; nothing in it waits."""

    def __init__(self, context: Context, vault: Vault, config: KeeperConfig, circle: Circle) -> None:
        self._context = context
        self._vault = vault
        self._config = config
        self._circle = circle
        self._role = Role.IDLE  # that the keeper was started for
        self._changing = asyncio.Lock()
        self.generations = Generations(context, config.store)
        self.link = KeeperLink(context, config, self._hear)
        self.link.on_change = self._keeper_changed
        self.link.may_reopen = lambda: circle.led
        self._asked: Snapshot | None = None  # not every seat of this node has delivered
        self._postponed: Snap | None = None  # the final one, until an arena is free
        self.doubts: set[str] = set()  # who suspects that the state holds wrong values
        self._doubted: set[int] = set()  # saves that were handed over while somebody did
        self._waiting: list[PublishNow] = []  # while no keeper is there to take them
        self._unsettled: dict[int, tuple[str, tuple[int, ...]]] = {}  # attempts that wait for a commit, and our seats
        self.end = LastSave()
        self.durable_step: int | None = None  # newest that this run made durable
        self.problem = ""  # of the newest save
        self.on_report: Callable[[keeper.FromKeeper], None] = lambda _: None  # what concerns the lead
        self.on_fenced: Callable[[str], None] = lambda _: None  # our keeper leads no more
        self.may_claim: Callable[[], Awaitable[bool]] = _always
        self.on_ready: Callable[[], None] = lambda: None  # a keeper is there, or there will be none

    # --- the keeper ---------------------------------------------------------------------------------------------

    @property
    def opened(self) -> bool:
        """Whether the keeper was started for what this node is now."""
        return self._role is self._circle.role and self.link.ready

    async def open(self) -> str:
        """Start the keeper of a lead; the problem, "" when there is none."""
        self._role = Role.LEAD
        return await self.link.open()

    async def take_role(self) -> None:
        """What this node does may have changed: have the keeper for it, or none."""
        async with self._changing:
            if self._role is not self._circle.role:
                self._waiting.clear()  # of the lead before, who commits no more
            pause_s = _AGAIN_S
            while self._role is not self._circle.role and self._context.ending is None:
                await self.link.drop()
                self._role = Role.IDLE
                role = self._circle.role
                if role is Role.LEAD and not self._circle.led:
                    await asyncio.sleep(_LOOK_S)
                    continue
                if role is Role.LEAD and not await self.may_claim():
                    return
                problem = "" if role is Role.IDLE else await self.link.open(lead=role is Role.LEAD)
                if problem:
                    self._miss_waiting(problem)
                    self._context.say(f"closeranks: {problem}; it is tried again in {pause_s:.0f} s")
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _AGAIN_MOST_S)
                    continue
                self._role = role
                self._keeper_changed()

    async def claim_again(self) -> None:
        """Another lead of this run claimed the store after us, which we have followed since."""
        self._role = Role.IDLE
        await self.take_role()

    def _keeper_changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for word in waiting:
            self.publish(word)
        self.on_ready()

    def _miss_waiting(self, problem: str) -> None:
        self.problem = problem
        waiting, self._waiting = self._waiting, []
        for word in waiting:
            self._miss(word.number, problem)

    def tick(self) -> None:
        """Called a few times a second: the keeper may be overdue, or have more to read; the lead may be gone."""
        self.link.read()
        late = self.end.look(time.monotonic())
        self.problem = self.problem or late  # what is known already is nearer to the cause

    async def finish(self, ending: EndRun) -> EndRun:
        """Wait for what is being written, and end the keeper; the ending with what became of the last save."""
        patience_s = _LAST_S
        if ending.now:
            patience_s = _HURRIED_S
        elif ending.outcome == "stopped":
            patience_s = self._context.options.grace_s
        watch = asyncio.ensure_future(self._give_up_on_lead()) if self._role is Role.FOLLOWER else None
        await self._hand_over(min(patience_s, _LEAD_S))
        await self.link.finish(patience_s)
        if watch is not None:
            watch.cancel()
        return self.end.judge(ending, self.durable_step, self.problem) if self._context.library else ending

    async def _hand_over(self, patience_s: float) -> None:
        """The last images may wait for a keeper that is being started."""
        until_s = time.monotonic() + patience_s
        while self._waiting and time.monotonic() < until_s:  # noqa: ASYNC110 - it is nobody's to set an event
            await asyncio.sleep(_LOOK_S)
        if self._waiting:
            self._miss_waiting(f"no keeper of {self._config.store} within {patience_s:g} s of the end")

    async def _give_up_on_lead(self) -> None:
        """A lead that is gone commits nothing: say so where our own keeper looks for the commit.

        If it has committed before, that is what the keeper finds first.
        """
        heard_s = time.monotonic()
        while (life := await self._circle.life_of_lead()) is not Life.GONE and time.monotonic() - heard_s < _LEAD_S:
            heard_s = time.monotonic() if life is Life.ALIVE else heard_s
            await asyncio.sleep(_ASK_S)
        problem = "the node that commits was lost before it did"
        for attempt, seats in list(self._unsettled.values()):
            await asyncio.to_thread(disown, self._config.store, attempt, seats, problem)

    # --- snapshots ----------------------------------------------------------------------------------------------

    def snap(self, word: Snap) -> None:
        """The lead asks for a snapshot."""
        self._let_go(word.unsaved)
        found = {seat: self._context.workers.get(proc) for seat, proc in self._context.members.items()}
        workers = {seat: worker for seat, worker in found.items() if worker is not None and worker.alive}
        if len(workers) < len(found):
            self._circle.tell_lead(Delivered(save=word.save, problem="a seat is being replaced"))
            return
        snapshot = self._vault.begin(word.save, word.step, workers)
        if snapshot is None and word.final:
            self._postponed = word  # both arenas are still being written: one of them will be freed
            return
        if snapshot is None:
            self._circle.tell_lead(Delivered(save=word.save, problem="both arenas are still being written"))
            return
        snapshot.final = word.final
        self._asked = snapshot
        for seat, worker in workers.items():
            worker.send(messages.Snapshot(save=word.save, step=word.step, slot=snapshot.procs[seat][1]))

    def snapped(self, worker: Worker, message: messages.Snapped) -> None:
        """A seat delivered its part, or tells why it could not."""
        snapshot = self._asked
        if snapshot is None or snapshot.save != message.save:
            return
        if message.problem:
            self._circle.tell_lead(Delivered(save=snapshot.save, problem=message.problem))
            return
        snapshot.data_position = message.data_position
        self._vault.take(message.save, worker, message.image_bytes, message.pause_s)
        if snapshot.complete:
            self._asked = None
            self._circle.tell_lead(
                Delivered(
                    save=snapshot.save,
                    seats=tuple(sorted(snapshot.images)),
                    image_bytes=snapshot.image_bytes,
                    pause_s=snapshot.pause_s,
                )
            )

    def newest_of(self, step: int) -> Snapshot | None:
        """The newest complete snapshot of this step."""
        return self._vault.of_step(step)

    def give_up(self, word: GiveUp) -> None:
        """The lead has no use for a snapshot."""
        if self._asked is not None and self._asked.save == word.save:
            self._asked = None
        if self._postponed is not None and self._postponed.save == word.save:
            self._postponed = None
        self._vault.drop(word.save)

    def _let_go(self, unsaved: tuple[int, ...]) -> None:
        """What was asked for before will not be delivered, or not be saved."""
        self._postponed = self._asked = None
        self._vault.drop_unpublished(unsaved)

    # --- saves --------------------------------------------------------------------------------------------------

    def publish(self, word: PublishNow) -> None:
        """Hand the images to the keeper, as the save that they were taken for or as another one."""
        snapshot = self._vault.get(word.save)
        if self.link.closed:
            self._vault.free(word.save)
            self._miss(word.number, self.link.closed)
        elif snapshot is None or not snapshot.complete:
            self._miss(word.number, f"{self._circle.node} does not hold the images of save {word.save}")
        else:
            snapshot.published = True
            if self.link.ready:
                self._publish(word, snapshot)
            else:
                self._waiting.append(word)
        self._circle.tell_lead(Taken(number=word.number))

    def _publish(self, word: PublishNow, snapshot: Snapshot) -> None:
        seats = tuple(sorted(snapshot.images))
        message = keeper.Publish(
            save=word.number,
            step=snapshot.step,
            attempt=word.attempt,
            writers=seats,
            world=word.world,
            lead=self._circle.role is Role.LEAD,
            layout="one part for each seat",
            deadline_s=_SAVE_S,
            run_term=self._context.term,
            data_position=snapshot.data_position,
            versions=self._versions(),
            tiers=word.tiers,
            trusted=not self.doubts,
        )
        if self.doubts:
            self._doubted.add(word.number)
        self._unsettled[word.number] = (word.attempt, seats)
        self.link.publish(message, [snapshot.images[seat].fd for seat in seats])

    def _versions(self) -> dict[str, str]:
        """What the workers said of themselves when they joined."""
        told = next((w.facts for w in self._context.living() if w.facts is not None), {})
        return {name: told[name] for name in ("python", "torch", "script") if name in told}

    def _miss(self, number: int, problem: str) -> None:
        self.problem = problem
        self._circle.tell_lead(Missed(number=number, problem=problem))

    def trouble(self, word: Trouble) -> None:
        """A save did not become durable: the ranks of this node are told."""
        self.problem = word.cause
        for proc in self._context.members.values():
            worker = self._context.workers.get(proc)
            if worker is not None:
                worker.send(messages.SaveProblem(step=word.step, problem=word.problem))

    # --- what the keeper says -----------------------------------------------------------------------------------

    def _hear(self, report: keeper.FromKeeper) -> None:
        if isinstance(report, keeper.Committed | keeper.Kept | keeper.SaveLost):
            self._unsettled.pop(report.save, None)
        self._note(report)
        if self._role is Role.LEAD:
            self.on_report(report)
        if self._postponed is not None and isinstance(report, keeper.Freed):
            self.snap(self._postponed)

    @functools.singledispatchmethod
    def _note(self, report: keeper.FromKeeper) -> None:
        """Progress, and what became of the other tiers, is for the screen."""

    @_note.register
    def _(self, report: keeper.Opened) -> None:
        self.generations.opened(report.generations)
        self._context.note(
            StoreOpened(
                store=self._config.store,
                store_term=report.term,
                generations=len(self.generations.all),
                newest_step=self.generations.newest_step,
            )
        )

    @_note.register
    def _(self, report: keeper.Refused) -> None:
        if report.fenced:
            self.on_fenced(report.problem)
        else:
            self._context.say(f"closeranks: {report.problem}")

    @_note.register
    def _(self, report: keeper.Sealed) -> None:
        self._vault.seal(report.save)

    @_note.register
    def _(self, report: keeper.Freed) -> None:
        self._vault.free(report.save)

    @_note.register
    def _(self, report: keeper.Committed) -> None:
        self.durable_step, self.problem = report.step, ""
        self.link.committed()
        self.generations.committed(report.generation, report.step, trusted=report.save not in self._doubted)
        self._doubted.discard(report.save)

    @_note.register
    def _(self, _report: keeper.Kept) -> None:
        self.link.committed()

    @_note.register
    def _(self, report: keeper.SaveLost) -> None:
        self._miss(report.save, report.problem)

    @_note.register
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

    @_note.register
    def _(self, report: keeper.TierMissed) -> None:
        self._context.note(TierMissed(step=report.step, tier=report.tier, problem=report.problem))

    @_note.register
    def _(self, report: keeper.Dropped) -> None:
        self.generations.dropped(report)

    @_note.register
    def _(self, report: keeper.Drilled) -> None:
        self.generations.drilled(report)


async def _always() -> bool:
    return True
