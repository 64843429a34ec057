"""Reading a checkpoint of a store back into live objects, on every rank or on none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.inventory import Home
from closeranks.checkpoint.problems import CheckpointProblem, Mismatch, NothingToRestore
from closeranks.checkpoint.restore_plan import Rules as PlanRules
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.opening import found, open_store
from closeranks.train.meeting import clipped, told
from closeranks.train.random_state import RandomState
from closeranks.train.read_checked import RANDOM, Reader, read_checked
from closeranks.train.restore import Incoming, Rules
from closeranks.train.tree import NotProtectable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from closeranks.checkpoint.format import Manifest
    from closeranks.checkpoint.history import Generation
    from closeranks.checkpoint.stores.store import Store
    from closeranks.train.meeting import Meeting

_CANDIDATES = 64  # generations that are tried, newest first
_log = logging.getLogger("closeranks.checkpoint")


class Loaded(NamedTuple):
    """What is in the live objects now."""

    step: int
    generation: int
    notes: tuple[str, ...]  # what was not as it should be, in words; logged as warnings too
    values: dict[str, Any]  # of the state's plain data, by name
    data_position: Any  # as it was given to ``save``
    world: int  # ranks that saved it


class Request(NamedTuple):
    """What one rank asks for."""

    state: Mapping[str, Any]
    local: Mapping[str, Any]
    rules: Rules
    step: int | None
    generation: int | None
    randomness: bool
    part: str = ""


class Loading:
    """One load by all ranks of a meeting."""

    def __init__(self, store: str, job: str, meeting: Meeting, request: Request) -> None:
        self._text, self._job = store, job
        self._meeting, self._request = meeting, request
        self._incoming: Incoming | None = None
        self._manifests: dict[int, Manifest] = {}
        self._notes: list[str] = []

    def run(self) -> Loaded:
        """Load the newest generation that can be used as a whole, by every rank.

        Raises:
            NothingToRestore: there is none; the message has a reason for each.
            Mismatch: it is sound and does not fit.
            StoreRefused, StoreProblem: the store is not the job's, or does not answer.
            PeersSilent: a rank is gone.
            In every case nothing live was changed, on any rank.
        """
        store = open_store(self._text)
        try:
            home = self._home(store)
            passed: list[str] = []
            for number in self._candidates():
                problem = self._read(home, number)
                if not problem:
                    self._notes += [f"passed over {one}" for one in passed]
                    return self._take_over(number)
                passed.append(f"generation {number}: {problem}")
            reasons = "; ".join(passed) or self._nothing()
            raise NothingToRestore(f"{store.url}: expected a checkpoint that can be restored, got none: {reasons}")
        finally:
            store.close()

    def _home(self, store: Store) -> Home:
        log, problem = CommitLog(store), ""
        try:
            _require_anything(store)
            found(store, self._job, make=False, now_wall_s=0.0)
            self._manifests = {one.number: one.manifest for one in self._usable(log)}
        except CheckpointProblem as error:
            problem, mine = str(error), error
        everyone = self._meeting.agree(problem)
        if everyone:
            raise mine if problem else NothingToRestore(everyone)
        return Home(name=store.url, tier=0, store=store, log=log)

    def _usable(self, log: CommitLog) -> list[Generation]:
        """Newest step first. One that was asked for by its number may be one that something speaks against."""
        step, number = self._request.step, self._request.generation
        alive = [
            one
            for one in log.refresh().newest_first(self._request.part)
            if (one.number == number if number is not None else one.is_good)
            and (step is None or one.manifest.step == step)
        ]
        return sorted(alive, key=lambda one: (-one.manifest.step, -one.number))

    def _candidates(self) -> list[int]:
        """Those of rank 0: a generation that came while the ranks looked is not known to all of them."""
        mine = list(self._manifests)[:_CANDIDATES]
        everyone = self._meeting.gather(mine)
        return [number for number in everyone[0] if all(number in known for known in everyone)]

    def _nothing(self) -> str:
        step, number = self._request.step, self._request.generation
        if number is not None:
            return f"there is no generation {number}, or it was retired"
        return "no checkpoint has been made yet" if step is None else f"none of step {step}"

    def _read(self, home: Home, number: int) -> str:
        """Read a generation into scratch on all ranks; why it is of no use, in words, equal on all; "" it was read.

        Raises:
            Mismatch: on every rank, when it does not fit on one.
        """
        problem, differs = "", ""
        mine: Exception
        try:
            reader = Reader(self._request.state, self._local, self._meeting.rank, self._request.rules)
            self._incoming, restored = read_checked(
                [home], reader, PlanRules(generation=number, trusted=False, group=self._request.part)
            )
            self._notes = [note for note in restored.refused if not note.endswith("was asked for")]
        except Mismatch as error:
            differs, mine = str(error), error
        except NotProtectable as error:  # something live has no place in any checkpoint
            differs, mine = str(error), error
        except Exception as error:  # the other ranks wait to hear of it
            problem = str(error) if isinstance(error, CheckpointProblem) else repr(error)
        everyone = self._meeting.gather([clipped(differs), clipped(problem)])
        if any(one[0] for one in everyone):
            raise mine if differs else Mismatch(told([one[0] for one in everyone]))
        return told([one[1] for one in everyone])

    def _local(self, world: int, saved: frozenset[str]) -> dict[str, Any]:
        local = dict(self._request.local)
        if RANDOM in saved and self._request.randomness:
            seat = self._meeting.rank
            local[RANDOM] = RandomState(apart=seat if seat >= world else None)
        return local

    def _take_over(self, number: int) -> Loaded:
        incoming, manifest = self._incoming, self._manifests[number]
        assert incoming is not None
        problem = ""
        try:
            incoming.load_foreign()
        except Mismatch as error:
            problem, mine = str(error), error
        everyone = self._meeting.agree(problem)
        if everyone:
            if problem:
                raise mine
            raise Mismatch(f"{everyone}. Here: {incoming.undo()}")
        incoming.finish()
        notes = (*self._notes, *incoming.notes, *self._seats(manifest))
        for note in notes:
            _log.warning("loaded generation %d (step %d): %s", number, manifest.step, note)
        return Loaded(manifest.step, number, notes, incoming.values, manifest.data_position, manifest.world)

    def _seats(self, manifest: Manifest) -> list[str]:
        """What a changed number of ranks means for state that belongs to one of them."""
        before, now, rank = manifest.world, self._meeting.size, self._meeting.rank
        if rank >= before:
            note = (
                f"rank {rank} did not exist when {before} ranks saved this: its local state is a copy of rank "
                f"{rank % before}'s (a loader's position too: move it, or samples come twice), its random state was "
                "derived anew"
            )
            return [note]
        if now < before and rank == 0:
            names = f"rank {now}" if before - now == 1 else f"ranks {now} to {before - 1}"
            note = (
                f"{before} ranks saved this, {now} load it: the local state of {names} (loader positions, random "
                "state, buffers) has no reader"
            )
            return [note]
        return []


def _require_anything(store: Store) -> None:
    absent = isinstance(store, DirectoryStore) and not store.exists()
    if absent or next(iter(store.list("")), None) is None:
        raise NothingToRestore(
            f"{store.url}: expected a checkpoint, got nothing at all; is it the first run, or another path?"
        )
