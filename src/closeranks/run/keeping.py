"""What a run does about state that lasts: saves while it trains, and saved state that a group begins with.

Without a store there is nothing of it: groups begin with what their script builds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from closeranks import messages
from closeranks.cluster import saving_words as words
from closeranks.decide.choice import FROM_SCRATCH
from closeranks.decide.protocol import EndRun, Origin
from closeranks.decide.restore_points import RestorePoint, restore_points
from closeranks.events import Decided, StepClosed
from closeranks.run.circle import Circle, Hearers, Role
from closeranks.run.context import Context
from closeranks.run.loading import Begin, Loading
from closeranks.run.saving_parts import Parts
from closeranks.run.vault import Vault
from closeranks.run.watch import Watch
from closeranks.run.worker import Worker

_TICK_S: Final = 0.25
_OPEN_S: Final = 120.0  # for the store to answer, while a group waits for its saved state


def keeping_of(context: Context, circle: Circle) -> Keeping:
    """The parts that the command line asks for."""
    vault = Vault()
    return Keeping(context, vault, circle, None if context.options.store is None else Parts(context, vault, circle))


class Keeping:
    """The parts about state that lasts, as the supervisor sees them."""

    def __init__(self, context: Context, vault: Vault, circle: Circle, parts: Parts | None) -> None:
        self._context = context
        self._vault = vault
        self._circle = circle
        self._parts = parts
        self._loading = Loading(context, vault, circle, Begin(self._begin_lead, self._begin_here))
        self._origin: Origin | None = None  # of a group that has not begun to train
        self._before_step: int | None = None  # it begins with state of an earlier step; None: whatever there is
        self._unbegun: tuple[Origin | None, float] | None = None  # what waits for the lead's keeper, and since when
        self._role = circle.role
        self._cold_incident = 0  # newest in which state had to be read from a save
        self._settle: Callable[[int], None] = lambda _: None
        if parts is not None:
            circle.attach(Hearers(self._from_lead, self._to_lead, self._seated))
            parts.saver.on_ready, parts.saver.on_fenced = self._ready, self._fenced
            parts.saver.may_claim = self._may_claim

    def attach(self, watch: Watch) -> None:
        """Who counts steps: it tells of each, and is told where they begin."""
        watch.on_step = self._step_done
        self._settle = watch.settle
        if self._parts is not None:
            self._parts.saves.newest_open_step = watch.newest_open_step

    # --- the run ------------------------------------------------------------------------------------------------

    async def open(self) -> str:
        """Look into the store; why the run cannot begin, "" when it can. On one node it is claimed at once."""
        if self._parts is None:
            return ""
        if self._circle.several:
            return await self._parts.resuming.visit()
        return await self._parts.saver.open() or await self._parts.resuming.begin(self._parts.saver.link.store_term - 1)

    @property
    def refused(self) -> bool:
        """Whether it is the store that cannot be this run's, and not this node that cannot use it."""
        return self._parts is not None and self._parts.resuming.refused

    @property
    def refusal(self) -> str:
        """Why a run of several nodes cannot begin with what the store holds; "": it can."""
        return "" if self._parts is None else self._parts.resuming.refusal

    @property
    def saved_step(self) -> int | None:
        """What a restart of the group could go on after, as far as this node knows."""
        return None if self._parts is None else self._parts.resuming.saved_step

    async def run(self) -> None:
        """Look after the keeper until the run ends."""
        while self._parts is not None and self._context.ending is None:
            await asyncio.sleep(_TICK_S)
            self._parts.saver.tick()
            if self._circle.role is Role.LEAD:
                self._parts.saver.generations.replays.look()
                self._parts.saves.tick()
            if self._waits_too_long():
                self._unbegun = None
                self._circle.end_run(f"saved state cannot be loaded: {self._parts.saver.problem or 'no keeper'}")

    def _waits_too_long(self) -> bool:
        """Whether ranks wait for saved state, and there is no keeper to say which there is."""
        origin, since_s = self._unbegun or (None, 0.0)
        return origin is not None and time.monotonic() - since_s > _OPEN_S

    async def finish(self, ending: EndRun) -> EndRun:
        """The run is over: what is being written gets its time. The ending, with what became of it."""
        if self._parts is not None:
            ending = await self._parts.saver.finish(ending)
            await self._parts.saves.finish()
            if not self._context.library and ending.outcome == "completed":
                self._context.say("closeranks: nothing was saved: the script never called closeranks.join()")
        self._vault.close()
        return ending

    # --- the circle ---------------------------------------------------------------------------------------------

    def _seated(self) -> None:
        """A term begins: this node may have become another one among the savers."""
        parts, role = self._parts, self._circle.role
        if parts is None:
            return
        if role is not self._role:
            self._role, self._unbegun = role, None
            parts.saves.reset()
            self._loading.drop()
            self._context.spawn(parts.saver.take_role())
        elif role is Role.LEAD:
            parts.saves.seated()

    async def _may_claim(self) -> bool:
        """Whether the store is still this run's; if another one took it over, the job ends."""
        problem = "" if self._parts is None else await self._parts.claims.taken_over()
        if problem:
            self._circle.end_run(f"another run has taken the store over: {problem}")
        return not problem

    def _fenced(self, problem: str) -> None:
        """Our keeper was refused for a newer claim."""
        if not self._circle.several:
            self._context.fail(f"another run has taken the store over: {problem}")
            return
        self._context.say(f"closeranks: {problem}")
        self._context.spawn(self._look_who_claimed())

    async def _look_who_claimed(self) -> None:
        if self._parts is not None and await self._may_claim():
            await self._parts.saver.claim_again()

    def _ready(self) -> None:
        """There is a keeper, or it is certain that there will be none."""
        parts = self._parts
        if parts is None or self._circle.role is not Role.LEAD:
            return
        parts.saves.ready()
        unbegun, self._unbegun = self._unbegun, None
        if unbegun is not None:
            self._begin_group(parts, unbegun[0])

    def _from_lead(self, word: words.FromLead) -> None:
        parts = self._parts
        if parts is None:
            return
        if isinstance(word, words.Claimed):
            parts.claims.told(word.store_term)
        elif self._circle.role is not Role.IDLE:
            self._obey(parts, word)

    def _obey(self, parts: Parts, word: words.FromLead) -> None:
        match word:
            case words.Snap():
                parts.saver.snap(word)
            case words.GiveUp():
                parts.saver.give_up(word)
            case words.PublishNow():
                parts.saver.publish(word)
            case words.Trouble():
                parts.saver.trouble(word)
            case words.LoadPoint():
                self._loading.load(word)
            case words.AdoptAll():
                self._loading.adopt(word)
            case words.LeaveNow():
                parts.saver.end.copied()

    def _to_lead(self, node: str, word: words.ToLead) -> None:
        parts = self._parts
        if parts is None:
            return
        match word:
            case words.Delivered():
                parts.saves.delivered(node, word)
            case words.Taken():
                parts.saves.taken(node, word)
            case words.Missed():
                parts.saves.missed(node, word)
            case words.LoadedHere():
                self._loading.heard(node, word)
            case words.Back():
                self._loading.again()
                parts.saves.back(node)

    # --- decisions ----------------------------------------------------------------------------------------------

    def start_group(self, origin: Origin, before_step: int | None) -> None:
        """Processes of a new group are started; state of ``before_step`` or later did not work out."""
        self._loading.drop()
        self._origin, self._unbegun, self._before_step = origin, None, before_step

    def go_on(self) -> None:
        """The members of a term go on; those of a new group are told what to begin with."""
        origin, self._origin = self._origin, None
        parts = self._parts
        if parts is None:
            return
        if self._circle.role is not Role.LEAD:
            parts.resuming.take_elsewhere()  # not ours to offer
        elif parts.saver.opened or origin is Origin.NOTHING:
            self._begin_group(parts, origin)
        else:
            self._unbegun = (origin, time.monotonic())

    def _begin_group(self, parts: Parts, origin: Origin | None) -> None:
        if origin is None:  # a recovery compares the digests of all seats before it lets them go on
            parts.saver.generations.agreed()
            return
        if origin is Origin.NOTHING:
            parts.saver.durable_step = None
            parts.saves.begin(-1, durable=False)
            return
        memory = None if self._circle.several else self._vault.restorable()  # a seat may need those of other nodes
        step = None if memory is None else memory.step
        elsewhere = parts.resuming.take_elsewhere()
        if self._before_step is not None:
            why = "training that went on from it, or had led to it, was not what it had been before the failure"
            parts.saver.generations.write_off_from(self._before_step, why)
        self._loading.begin(restore_points(origin, step, parts.saver.generations.all, elsewhere))

    def loss_seen(self, decided: Decided) -> None:
        """A recovery was decided; in one incident state is lost once, however often the group starts."""
        cold = decided.rung in FROM_SCRATCH and decided.incident != self._cold_incident
        self._cold_incident = decided.incident if cold else self._cold_incident
        if self._parts is not None and self._circle.role is Role.LEAD:
            self._parts.saves.loss_seen(cold=cold)

    def suspect(self, detail: str) -> None:
        """Seats that should hold the same state do not."""
        if self._parts is not None and self._circle.role is Role.LEAD:
            self._parts.saver.generations.suspect(detail)

    def doubt(self, source: str) -> None:
        """What is saved from now on is not trusted ..."""
        if self._parts is not None:
            self._parts.saver.doubts.add(source)

    def believe(self, source: str) -> None:
        """... until whoever doubted it does so no longer."""
        if self._parts is not None:
            self._parts.saver.doubts.discard(source)

    def let_leave(self, leave: Callable[[], None]) -> None:
        """The loop is over everywhere; its end is saved before anyone leaves."""
        if self._parts is None or self._circle.role is Role.IDLE:
            leave()
            return
        self._parts.saver.end.let_leave(leave, self._context.last_step)
        if self._circle.role is Role.LEAD:
            self._parts.saves.let_leave(self._context.last_step)

    # --- steps and messages -------------------------------------------------------------------------------------

    def _step_done(self, closed: StepClosed, period_s: float) -> None:
        """The seats of this node closed a step; on one node these are all."""
        if self._parts is None:
            return
        self._parts.saver.generations.replays.step_done(closed)
        if not self._circle.several:
            self.closed_everywhere(closed.step, period_s)

    def closed_everywhere(self, step: int, period_s: float) -> None:
        """Every seat closed a step, so long after the one before; 0: unknown."""
        if self._parts is not None:
            self._parts.saves.step_done(step, period_s)

    def snapped(self, worker: Worker, message: messages.Snapped) -> None:
        """A seat copied its part of the state."""
        if self._parts is not None:
            self._parts.saver.snapped(worker, message)

    def loaded(self, worker: Worker, message: messages.Loaded) -> None:
        """A seat read saved state."""
        self._loading.loaded(worker, message)

    def adopted(self, worker: Worker, message: messages.Adopted) -> None:
        """A seat trains with saved state."""
        self._loading.adopted(worker, message)

    def replayed(self, worker: Worker, message: messages.Replayed) -> None:
        """A spare tried a checkpoint out."""
        if self._parts is not None:
            self._parts.saver.generations.replays.replayed(worker, message)

    def _begin_lead(self, point: RestorePoint) -> None:
        if self._parts is not None:
            self._parts.saves.begin(point.step, durable=point.generation is not None)

    def _begin_here(self, word: words.AdoptAll) -> None:
        self._settle(word.step)
        if self._parts is not None:
            self._parts.saver.durable_step = word.step if word.durable else None
