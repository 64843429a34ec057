"""What a run does with a store that holds something already: go on with it if it was told to, and else refuse it."""

from __future__ import annotations

import asyncio
import contextlib
import time

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.history import History
from closeranks.checkpoint.inventory import Home, take_stock
from closeranks.checkpoint.keeper_durable import known_generations
from closeranks.checkpoint.keeper_homes import open_home
from closeranks.checkpoint.keys import term_of
from closeranks.checkpoint.problems import CheckpointProblem, StoreRefused
from closeranks.checkpoint.stores.opening import found, open_store
from closeranks.checkpoint.tiers import TOKEN_VARIABLE
from closeranks.events import RunResumed
from closeranks.run.context import Context
from closeranks.run.generations import Generations
from closeranks.run.options import AUTO, job_name, tiers_of


class Resuming:
    """What there is to go on with."""

    def __init__(self, context: Context, generations: Generations) -> None:
        self._context = context
        self._generations = generations
        self._elsewhere: frozenset[int] = frozenset()  # steps that were whole in other homes when the run began
        self.refused = False  # by the store itself, as every node is
        self.refusal = ""  # why a run of several nodes cannot begin with this store; one that has begun does not mind

    @property
    def saved_step(self) -> int | None:
        """The newest step that a group could go on after."""
        return max((s for s in (self._generations.newest_step, *self._elsewhere) if s is not None), default=None)

    async def visit(self) -> str:
        """Look into the store without a claim on it; why this node cannot take part, "" when it can.

        What the store holds may be this run's own: whether that is in the way (``refusal``) is known with the leader.
        """
        try:
            history = await asyncio.to_thread(
                _visit, self._context.options.store or "", job_name(self._context.options)
            )
        except CheckpointProblem as problem:
            self.refused = isinstance(problem, StoreRefused)
            return str(problem)
        self._generations.opened(known_generations(history))
        self.refusal = await self.begin(history.term)
        return ""

    async def begin(self, last_term: int) -> str:
        """The store was looked into, and its last writer had this term: why the run cannot begin, "" when it can."""
        options = self._context.options
        if options.resume is not None:
            self._elsewhere = await asyncio.to_thread(self._look_elsewhere, last_term)
        newest = self.saved_step
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

    def take_elsewhere(self) -> frozenset[int]:
        """Steps that were whole in other homes, for the first group: newer ones soon take their place there."""
        elsewhere, self._elsewhere = self._elsewhere, frozenset()
        return elsewhere

    def _look_elsewhere(self, last_term: int) -> frozenset[int]:
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
        return frozenset(point.step for point in whole if term_of(point.attempt) == last_term)


def _visit(url: str, job: str) -> History:
    """What the log says of a store that is this job's, or becomes it.

    Raises:
        CheckpointProblem: it cannot be read, or belongs to another job.
    """
    with contextlib.closing(open_store(url)) as store:
        found(store, job, make=True, now_wall_s=time.time())
        return CommitLog(store).refresh()
