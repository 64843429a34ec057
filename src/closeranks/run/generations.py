"""The checkpoints of the store as this run knows them: which can be restored, and which must not be."""

from __future__ import annotations

import asyncio
import contextlib

from msgspec.structs import replace

from closeranks.checkpoint import keeper_messages as keeper
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Verified
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.checkpoint.stores.opening import open_store
from closeranks.decide.restore_points import Kept
from closeranks.events import CheckpointsRetired, CheckpointVerified
from closeranks.messages import Load
from closeranks.run.context import Context
from closeranks.run.replays import Replays


def kept_of(generations: tuple[keeper.Known, ...]) -> dict[int, Kept]:
    """What a store holds of the job as a whole, by the number of the generation."""
    return {
        known.generation: Kept(
            generation=known.generation,
            step=known.step,
            trusted=known.trusted,
            verified=known.verified == "held",
            broken=known.verified == "broken",
        )
        for known in generations
        if known.group == ""
    }


def newest_step_of(kept: dict[int, Kept]) -> int | None:
    """The highest step that can be gone back to; None: there is none."""
    return max((one.step for one in kept.values() if not one.broken), default=None)


class Generations:
    """Follows what the keeper reports; notes what people should know."""

    def __init__(self, context: Context, store: str) -> None:
        self._context = context
        self._store = store
        self._kept: dict[int, Kept] = {}
        self._agreed = 0  # newest one when all seats were last found to hold the same
        self.replays = Replays(context)

    @property
    def all(self) -> tuple[Kept, ...]:
        """Those that are alive, as far as is known."""
        return tuple(self._kept.values())

    @property
    def newest_step(self) -> int | None:
        """The highest step that can be gone back to."""
        return newest_step_of(self._kept)

    def opened(self, generations: tuple[keeper.Known, ...]) -> None:
        """The store told what it holds."""
        self._kept = kept_of(generations)

    def committed(self, generation: int, step: int, *, trusted: bool) -> None:
        """One more."""
        self._kept[generation] = Kept(generation=generation, step=step, trusted=trusted)

    def dropped(self, report: keeper.Dropped) -> None:
        """The retention gave some up."""
        for generation in report.generations:
            self._kept.pop(generation, None)
        if report.generations:
            self._context.note(CheckpointsRetired(generations=report.generations, freed_bytes=report.freed_bytes))
        if report.problem:
            self._context.say(f"closeranks: old checkpoints were not swept: {report.problem}")

    def drilled(self, report: keeper.Drilled) -> None:
        """One was read back; if that went well a spare tries it out."""
        if report.generation is None:
            return
        if not report.recorded:
            self._context.say(f"closeranks: generation {report.generation} was not verified: {report.detail}")
            return
        kept = self._kept.get(report.generation)
        if kept is not None:
            kept = self._kept[report.generation] = replace(kept, verified=report.held, broken=not report.held)
        if kept is None or not report.held:
            self._verified(report, report.detail)
            return
        load = Load(step=kept.step, generation=kept.generation, store=self._store)
        self.replays.begin(load, lambda told: self._verified(report, f"{report.detail}; {told}"))

    def agreed(self) -> None:
        """All seats were found to hold the same: what was saved so far is beyond suspicion."""
        self._agreed = max(self._kept, default=0)

    def suspect(self, detail: str) -> None:
        """Seats were found to differ: what was saved since they last agreed may hold the wrong value."""
        since = [number for number in self._kept if number > self._agreed]
        self._write_off(since, f"it was saved before it was found that {detail}")

    def write_off_from(self, step: int, why: str) -> None:
        """What was saved of this step and later ones did not work out."""
        self._write_off([number for number, kept in self._kept.items() if kept.step >= step and not kept.broken], why)

    def _write_off(self, numbers: list[int], why: str) -> None:
        for number in numbers:
            self._kept[number] = replace(self._kept[number], trusted=False, broken=True)
            told = f"not to be restored: {why}"
            self._context.note(CheckpointVerified(generation=number, held=False, detail=told, took_s=0.0))
        if numbers:
            self._context.spawn(self._tell_log(numbers, why))

    async def _tell_log(self, numbers: list[int], why: str) -> None:
        try:
            await asyncio.to_thread(self._note_in_log, numbers, why)
        except CheckpointProblem as problem:
            self._context.say(f"closeranks: generations {numbers} must not be restored, but the log: {problem}")

    def _note_in_log(self, numbers: list[int], why: str) -> None:
        """So that no later run restores them. Not our term's business: anybody may say so."""
        with contextlib.closing(open_store(self._store)) as store:
            log = CommitLog(store)
            for number in numbers:
                log.append_as_visitor(Verified(generation=number, held=False, detail=why))

    def _verified(self, report: keeper.Drilled, detail: str) -> None:
        self._context.note(
            CheckpointVerified(
                generation=report.generation or 0, held=report.held, detail=detail, took_s=report.seconds
            )
        )
