"""Checkpoints as a library: ``save``, ``async_save`` and ``load`` in any script, by one process or by all ranks.

Training pauses for one copy into shared memory; a process beside it digests, writes and commits. Its errors surface at
the next call here, on every rank, and in the exit code at the latest.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import secrets
import socket
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from blake3 import blake3

from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.problems import CheckpointProblem, SaveFailed
from closeranks.checkpoint.retention import Policy
from closeranks.checkpoint.writing import Options
from closeranks.train import at_exit, tree
from closeranks.train.capture import capture, copy_into
from closeranks.train.flights import Flight, Flights, Saved
from closeranks.train.loading import Loaded, Loading, Request
from closeranks.train.meeting import Meeting, PeersSilent, clipped, told
from closeranks.train.random_state import RandomState
from closeranks.train.read_checked import RANDOM
from closeranks.train.restore import Rules
from closeranks.version import version

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from closeranks.checkpoint.arena import Arena

_log = logging.getLogger("closeranks.checkpoint")
_PART = re.compile(r"[A-Za-z0-9._-]{0,64}", re.ASCII)


class Settings(NamedTuple):
    """How a Checkpointer works, where the defaults do not suit."""

    options: Options = Options()
    deadline_s: float = 600.0  # of a save, from its copy to its commit; also of a rank that the others wait for
    randomness: bool = True  # save and restore the global random generators of every rank
    priority: int = 19  # nice value of the process that writes


class Saving:
    """A save in work."""

    def __init__(self, flights: Flights, flight: Flight) -> None:
        self._flights, self._flight = flights, flight

    @property
    def step(self) -> int:
        """Its step."""
        return self._flight.publish.step

    def done(self) -> bool:
        """Whether it has ended, well or not. Never blocks."""
        self._flights.look()
        return self._flight.ended

    def result(self, timeout_s: float | None = None) -> Saved:
        """Wait until it is durable; without a limit, until its deadline.

        Raises:
            TimeoutError: it is still in work.
            SaveFailed: it is not durable; says why. The next save does not say it again.
        """
        flight = self._flight
        patience_s = flight.publish.deadline_s if timeout_s is None else timeout_s
        if not self._flights.wait_for(flight, patience_s) and not flight.ended:
            raise TimeoutError(f"the save of step {self.step} is still in work after {patience_s:g} s")
        if flight.saved is None:
            flight.told = True
            raise SaveFailed(f"the save of step {self.step} failed: {flight.problem}")
        return flight.saved


class Checkpointer:
    """Saves to a store and loads from it. All methods but those of ``Saving`` are collective over the group's ranks."""

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        job: str = "default",
        group: Any = None,
        retention: Policy | str = "",
        settings: Settings | None = None,
    ) -> None:
        """Nothing is touched before the first save or load.

        Args:
            store: a folder, or a URL (s3://, gs://, az://).
            job: a store belongs to one job; a name keeps others out.
            group: a ``torch.distributed`` group; None: the default one, or this process alone where there is none.
            retention: what to keep, such as "last=3,hourly=24,daily=7,every=1000".
            settings: the rest.
        """
        self._store, self._job = os.fspath(store), job
        self._settings = settings or Settings()
        policy = retention if isinstance(retention, Policy) else Policy.parse(retention)
        self._meeting = Meeting(group, self._settings.deadline_s + 30.0)
        self._flights = Flights(
            KeeperConfig(
                store=self._store,
                job=job,
                owner=f"{socket.gethostname()}/{os.getpid()}",
                lead=self._meeting.rank == 0,
                options=self._settings.options,
                retention=policy,
                priority=self._settings.priority,
            )
        )
        self._lost_attempts: list[str] = []  # that this call tells of
        self._closed = False
        at_exit.watch(self)

    @property
    def closed(self) -> bool:
        """Whether it can be used no more."""
        return self._closed

    @property
    def keeper_pid(self) -> int | None:
        """Of this rank's writing process; None before the first save."""
        return self._flights.keeper_pid

    def save(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        local: Mapping[str, Any] | None = None,
        data_position: Any = None,
        wait: bool = True,
        part: str = "",
    ) -> Saved | Saving:
        """Save the state as it is now, after ``step``.

        Args:
            state: modules, optimizers, anything with ``state_dict``, nested data; equal on all ranks, but for DTensors.
            step: the last one that was finished.
            local: state of this rank alone.
            data_position: JSON; ``load`` gives it back.
            wait: False returns a Saving after one copy in memory; the state may be changed then.
            part: a name for state that is saved at an interval of its own (embeddings, say): its generations are
                counted, kept and loaded apart from those of the rest, which has the part "".

        Raises:
            SaveFailed: on all ranks: an earlier save failed that nobody was told of yet, or (with ``wait``) this one
                did, or a rank is gone. In the first case this call saved nothing: call again to go on.
            StoreRefused, Fenced, StoreProblem: the store cannot be used.
            NotProtectable: a leaf of the state cannot be kept; its name is in the message.
        """
        if self._closed:
            raise SaveFailed("this Checkpointer was closed; make a new one")
        if not _PART.fullmatch(part):
            raise ValueError(f"part={part!r}: expected at most 64 letters, digits, '.', '_' or '-'")
        mine = self._copied(state, step, local or {})
        fields = {
            "layout": "sharded" if any(_is_sharded(value) for value in state.values()) else "replicated",
            "data_position": data_position,
            "group": part,
        }
        flight = self._agreed_flight(mine, step, fields)
        saving = Saving(self._flights, flight)
        if not wait:
            return saving
        return self._outcome(saving)

    def load(  # noqa: PLR0913 -- keywords with defaults: which one to load, and what counts as a fit
        self,
        state: Mapping[str, Any],
        *,
        local: Mapping[str, Any] | None = None,
        step: int | None = None,
        generation: int | None = None,
        strict: bool = True,
        cast: bool = False,
        part: str = "",
    ) -> Loaded:
        """Load the newest usable generation, or the one that is asked for, into the live objects.

        Everything is read and checked first. When this raises, nothing was changed, on any rank.

        Args:
            state: as for ``save``; wrapped, sharded and placed as it is now. Dicts are filled.
            local: as for ``save``.
            step: only a generation of this step.
            generation: only this one, even one that was saved under suspicion.
            strict: False: what only one side has is left alone, and noted.
            cast: convert elements to the types of the live tensors.
            part: as for ``save``.

        Raises:
            NothingToRestore: there is none; says why for each.
            Mismatch: it does not fit: all names, shapes and types that differ are in the message.
            StoreRefused, StoreProblem: the store is another job's, or does not answer.
        """
        request = Request(state, local or {}, Rules(strict, cast), step, generation, self._settings.randomness, part)
        loaded = Loading(self._store, self._job, self._meeting, request).run()
        if isinstance(state, dict):
            state.update(loaded.values)
        return loaded

    def close(self) -> None:
        """Wait for the saves in work and end.

        Raises:
            SaveFailed: on all ranks: a save failed that nobody was told of yet.
        """
        if self._closed:
            return
        self._closed = True
        problem = ""
        try:
            problem = self._lost_anywhere()
            if not problem:  # else a rank's writer is gone, and the others would wait for it until their deadline
                self._flights.wait_for_all()
                problem = self._lost_anywhere()
        except PeersSilent as error:
            problem = str(error)
        finally:
            self._flights.close(0 if problem else self._settings.deadline_s)
            self._meeting.close()
        if problem:
            raise SaveFailed(problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # Another rank may not come to close: only what needs no other rank is done, and it must not hide the error.
        problem = self.finish_alone()
        if problem:
            _log.error("%s", problem)

    def finish_alone(self) -> str:
        """Without the other ranks: wait for own saves, end the writing process. What went wrong, in words."""
        if self._closed:
            return ""
        self._closed = True
        self._flights.wait_for_all()
        lost = self._flights.untold()
        self._flights.close(self._settings.deadline_s)
        return lost.words

    # --- the parts of a save -----------------------------------------------------------------------------------

    def _copied(self, state: Mapping[str, Any], step: int, local: Mapping[str, Any]) -> _Part:
        """This rank's part, in an arena. A problem is returned: the other ranks wait to hear of it."""
        try:
            if RANDOM in local:
                raise ValueError(f"local={{{RANDOM!r}: ...}}: the name is taken; choose a different one")  # noqa: TRY301
            if self._settings.randomness:
                local = {**local, RANDOM: RandomState()}
            self._raise_untold()
            term = self._flights.open(self._settings.deadline_s)
            arena = self._flights.free_arena(self._settings.deadline_s)
            self._raise_untold()
            captured = capture(state, local, self._meeting.rank, self._meeting.size)
            copy_into(captured, arena, step)
        except Exception as error:
            return _Part(None, error, 0, "")
        names = (name for value in captured.shared["values"].values() for name in tree.names_in(value))
        return _Part(arena, None, term, blake3("\0".join(names).encode()).hexdigest())

    def _lost_anywhere(self) -> str:
        lost = self._flights.untold()
        everyone = self._meeting.gather([clipped(lost.words), lost.attempts])
        for _, attempts in everyone:
            self._flights.have_heard_of(attempts)
        return told([words for words, _ in everyone])

    def _raise_untold(self) -> None:
        lost = self._flights.untold()
        if lost.words:
            self._lost_attempts = lost.attempts
            raise SaveFailed(f"{lost.words}. Nothing was saved by this call: call again to go on")

    def _agreed_flight(self, part: _Part, step: int, fields: dict[str, Any]) -> Flight:
        words = "" if part.problem is None else f"{_kind(part.problem)}{part.problem}"
        lost, self._lost_attempts = self._lost_attempts, []
        mine = [clipped(words), [step, fields["group"]], part.names, lost, part.term, secrets.token_hex(4)]
        try:
            everyone = self._meeting.gather(mine)
        except PeersSilent as error:
            raise SaveFailed(f"step {step} was not saved: {error}") from error
        for one in everyone:
            self._flights.have_heard_of(one[3])
        if part.problem is not None:
            raise part.problem
        if problem := _disagreement(everyone):
            raise SaveFailed(f"step {step} was not saved: {problem}")
        assert part.arena is not None
        *_, term, nonce = everyone[0]
        return self._flights.publish(
            part.arena,
            step=step,
            attempt=attempt_name(term, step, nonce),
            writers=(self._meeting.rank,),
            world=self._meeting.size,
            lead=self._meeting.rank == 0,
            deadline_s=self._settings.deadline_s,
            versions=_versions(),
            passes_over=False,  # whoever calls save wants this one
            **fields,
        )

    def _outcome(self, saving: Saving) -> Saved:
        """Of a save that is waited for: the same on every rank."""
        problem, saved = "", None
        try:
            saved = saving.result()
        except (SaveFailed, TimeoutError) as error:
            problem = str(error)
        try:
            everyone = self._meeting.agree(problem)
        except PeersSilent as error:
            raise SaveFailed(f"step {saving.step}: {error}") from error
        if everyone or saved is None:
            raise SaveFailed(everyone)
        return saved


class _Part(NamedTuple):
    """One rank's part of a save, before the ranks have agreed on it."""

    arena: Arena | None
    problem: Exception | None
    term: int
    names: str  # digest of the names of all shared tensors


def _kind(problem: Exception) -> str:
    """For the other ranks: our own problems are sentences."""
    return "" if isinstance(problem, CheckpointProblem) else f"{type(problem).__name__}: "


def _disagreement(everyone: list[Any]) -> str:
    """Why the ranks cannot save together, in words; empty when they can."""
    problem = told([one[0] for one in everyone])
    if problem:
        return problem
    places = sorted({(step, part) for step, part in (one[1] for one in everyone)})
    if len(places) > 1:
        return f"the ranks save different steps or parts: {', '.join(f'step {s} {p}'.strip() for s, p in places)}"
    others = [rank for rank, one in enumerate(everyone) if one[2] != everyone[0][2]]
    if others:
        return (
            f"rank {others[0]} names other tensors than rank 0; what differs by rank (the stages of a pipeline, say) "
            "is to be given as local={...}"
        )
    return ""


def _is_sharded(value: Any) -> bool:
    return isinstance(value, torch.nn.Module) and any(hasattr(p, "device_mesh") for p in value.parameters())


def _versions() -> dict[str, str]:
    return {
        "closeranks": version(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
