"""What a run does about state that lasts: saves while it trains, and saved state that a group begins with.

Without a store there is nothing of it: groups begin with what their script builds.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable

from closeranks import messages
from closeranks.checkpoint.inventory import Home, take_stock
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_homes import open_home
from closeranks.checkpoint.keys import term_of
from closeranks.checkpoint.retention import Policy
from closeranks.checkpoint.tiers import TOKEN_VARIABLE
from closeranks.decide import saving
from closeranks.decide.protocol import EndRun, Origin
from closeranks.decide.restore_points import RestorePoint, restore_points
from closeranks.decide.save_interval import EverySeconds, EverySteps
from closeranks.events import Rung, RunResumed, StepClosed
from closeranks.run.context import Context
from closeranks.run.earlier import known_losses
from closeranks.run.loading import Loading
from closeranks.run.options import AUTO, job_name, tiers_of
from closeranks.run.saves import Saves
from closeranks.run.vault import Vault
from closeranks.run.watch import Watch
from closeranks.run.worker import Worker

_TICK_S = 0.25


def keeping_of(context: Context) -> Keeping:
    """The parts that the command line asks for."""
    options = context.options
    vault = Vault()
    if options.store is None:
        return Keeping(context, vault, None)
    config = KeeperConfig(
        store=options.store,
        job=job_name(options),
        owner=f"{platform.node()}, run {context.run}",
        lead=True,
        run=context.run,
        retention=Policy.parse(options.keep),
        tiers=tiers_of(options),
        peer_token=context.environment.get(TOKEN_VARIABLE, ""),
        drill_every_s=options.verify_every_s,
    )
    every: EverySteps | EverySeconds | None = None
    if options.save_every_steps is not None:
        every = EverySteps(steps=options.save_every_steps)
    elif options.save_every_s is not None:
        every = EverySeconds(seconds=options.save_every_s)
    resume = None if options.resume == AUTO else options.resume
    history = known_losses(resume, options.reliability)
    settings = saving.Settings(every=every, rpo_s=options.rpo_s, history=history)
    return Keeping(context, vault, Saves(context, vault, config, settings))


class Keeping:
    """The parts about state that lasts, as the supervisor sees them."""

    def __init__(self, context: Context, vault: Vault, saves: Saves | None) -> None:
        self._context = context
        self._vault = vault
        self._saves = saves
        self._loading = Loading(context, vault, self._begin)
        self._origin: Origin | None = None  # of a group that has not begun to train
        self._elsewhere: frozenset[int] = frozenset()  # steps that were whole in other homes when the run began
        self._settle: Callable[[int], None] = lambda _: None

    def attach(self, watch: Watch) -> None:
        """Who counts steps: it tells of each, and is told where they begin."""
        watch.on_step = self._step_done
        self._settle = watch.settle
        if self._saves is not None:
            self._saves.newest_open_step = watch.newest_open_step

    # --- the run ------------------------------------------------------------------------------------------------

    async def open(self) -> str:
        """Open the store; why the run cannot begin, "" when it can."""
        if self._saves is None:
            return ""
        if problem := await self._saves.open():
            return problem
        if self._context.options.resume is not None:
            self._elsewhere = await asyncio.to_thread(self._look_elsewhere, self._saves.store_term)
        return self._resume()

    @property
    def saved_step(self) -> int | None:
        """What the run goes on with at its start."""
        committed = None if self._saves is None else self._saves.generations.newest_step
        return max((step for step in (committed, *self._elsewhere) if step is not None), default=None)

    def _look_elsewhere(self, store_term: int) -> frozenset[int]:
        """Steps of the last writer of this store that it had not committed, but that other homes hold as a whole."""
        options = self._context.options
        token = self._context.environment.get(TOKEN_VARIABLE, "")
        homes = [
            Home(tier.name, place, open_home(tier, token), world=options.seats)
            for place, tier in enumerate(tiers_of(options).others)
        ]
        stock = take_stock(homes)
        for note in stock.notes:
            self._context.say(f"closeranks: {note}")
        points = [found.point for found in stock.found]
        whole = [point for point in points if len({held.writer for held in point.holdings}) == point.world]
        return frozenset(point.step for point in whole if term_of(point.attempt) == store_term - 1)

    async def run(self) -> None:
        """Look after the keeper until the run ends."""
        while self._saves is not None and self._context.ending is None:
            await asyncio.sleep(_TICK_S)
            self._saves.tick()

    async def finish(self, ending: EndRun) -> EndRun:
        """The run is over: what is being written gets its time. The ending, with what became of it."""
        if self._saves is not None:
            ending = await self._saves.finish(ending)
            if not self._context.library and ending.outcome == "completed":
                self._context.say("closeranks: nothing was saved: the script never called closeranks.join()")
        self._vault.close()
        return ending

    def _resume(self) -> str:
        options, newest = self._context.options, self.saved_step
        if newest is not None and options.resume is None:
            return (
                f"store {options.store}: holds checkpoints of this job already, up to step {newest}; to go on from "
                "there give --resume auto (or --resume RUN_FOLDER), to begin anew another --store"
            )
        if newest is None and options.resume not in (None, AUTO):
            return (
                f"--resume {options.resume}: nothing was committed to {options.store}, so there is nothing to go on "
                "with; leave --resume out to begin with step 0"
            )
        if options.resume is not None:
            earlier = "an earlier run" if options.resume == AUTO else options.resume
            self._context.note(RunResumed(from_run=earlier, store=options.store or "", step=newest))
        return ""

    # --- decisions ----------------------------------------------------------------------------------------------

    def start_group(self, origin: Origin) -> None:
        """Processes of a new group are started."""
        self._loading.drop()
        self._origin = origin

    def go_on(self) -> None:
        """The members of a term go on; those of a new group are told what to begin with."""
        origin, self._origin = self._origin, None
        if self._saves is None:
            return
        if origin is None:  # a recovery compares the digests of all seats before it lets them go on
            self._saves.generations.agreed()
            return
        if origin is Origin.NOTHING:
            self._saves.begin(-1, durable=False)
            return
        memory = self._vault.restorable()
        step = None if memory is None else memory.step
        self._loading.begin(restore_points(origin, step, self._saves.generations.all, self._elsewhere))
        self._elsewhere = frozenset()  # they are soon replaced by newer ones

    def loss_seen(self, rung: Rung) -> None:
        """A recovery was decided."""
        if self._saves is not None:
            self._saves.loss_seen(cold=rung in (Rung.COLD_RESTART, Rung.ROLL_BACK))

    def suspect(self, detail: str) -> None:
        """Seats that should hold the same state do not."""
        if self._saves is not None:
            self._saves.generations.suspect(detail)

    def let_leave(self, leave: Callable[[], None]) -> None:
        """The loop is over everywhere; its end is saved before anyone leaves."""
        if self._saves is None:
            leave()
        else:
            self._saves.let_leave(leave, self._context.last_step)

    # --- steps and messages -------------------------------------------------------------------------------------

    def _step_done(self, closed: StepClosed) -> None:
        if self._saves is not None:
            self._saves.step_done(closed)

    def snapped(self, worker: Worker, message: messages.Snapped) -> None:
        """A seat copied its part of the state."""
        if self._saves is not None:
            self._saves.snapped(worker, message)

    def loaded(self, worker: Worker, message: messages.Loaded) -> None:
        """A seat read saved state."""
        self._loading.loaded(worker, message)

    def adopted(self, worker: Worker, message: messages.Adopted) -> None:
        """A seat trains with saved state."""
        self._loading.adopted(worker, message)

    def replayed(self, worker: Worker, message: messages.Replayed) -> None:
        """A spare tried a checkpoint out."""
        if self._saves is not None:
            self._saves.generations.replays.replayed(worker, message)

    def _begin(self, point: RestorePoint) -> None:
        self._settle(point.step)
        if self._saves is not None:
            self._saves.begin(point.step, durable=point.generation is not None)
