"""Saves on their way through a keeper, as this process sees them: at most two, each with an arena."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.gather import publish_failure
from closeranks.checkpoint.keeper_client import KeeperClient, KeeperLost, start_keeper
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_messages import Committed, Freed, Kept, Opened, Publish, Refused, SaveLost
from closeranks.checkpoint.problems import CheckpointProblem, Fenced, SaveFailed, StoreProblem, StoreRefused
from closeranks.checkpoint.stores.opening import open_store

_AT_MOST: Final = 2
_GRACE_S: Final = 10.0  # a keeper reports by itself when a save's deadline is over


class Saved(NamedTuple):
    """A save that is durable."""

    step: int
    generation: int
    written_bytes: int  # by this rank
    reused_bytes: int  # of earlier generations, referred to instead of written
    seconds: dict[str, float]  # by stage


class Lost(NamedTuple):
    """Saves that failed."""

    words: str  # empty: none did
    attempts: list[str]


class Flight:
    """One save."""

    def __init__(self, publish: Publish, arena: Arena) -> None:
        self.publish, self.arena = publish, arena
        self.saved: Saved | None = None
        self.problem = ""
        self.told = False  # somebody has heard of the problem
        self.freed = False

    @property
    def ended(self) -> bool:
        """Whether its outcome is known."""
        return self.saved is not None or bool(self.problem)


class Flights:
    """All saves of one rank. For one thread; nothing happens between its calls but in the keeper."""

    def __init__(self, config: KeeperConfig) -> None:
        self._config = config
        self._client: KeeperClient | None = None
        self._term: int | None = None  # None: the keeper has not said yet
        self._claimed = 0  # our newest term; 0: another rank claims
        self._refused: CheckpointProblem | None = None
        self._arenas: list[Arena] = []
        self._flights: list[Flight] = []
        self._number = 0

    @property
    def keeper_pid(self) -> int | None:
        """Of the process that writes; None: there is none at the moment."""
        return None if self._client is None else self._client.pid

    def open(self, timeout_s: float) -> int:
        """The term under which attempts are named, once the store is known to be usable.

        Raises:
            StoreRefused, Fenced, StoreProblem: it is not; says why and what to do.
        """
        if isinstance(self._refused, Fenced):
            raise self._refused  # a new claim of ours would end the term of whoever took over
        if self._refused is not None or self._client is None:
            self._start()
        self._wait(lambda: self._term is not None or self._refused is not None, timeout_s)
        if self._refused is not None:
            raise self._refused
        if self._term is None:
            raise StoreProblem(f"{self._config.store}: not opened after {timeout_s:g} s", transient=True)
        return self._term

    def free_arena(self, timeout_s: float) -> Arena:
        """An arena to fill: back-pressure, for there are two, and a save in work is not pushed out by a newer one.

        Raises:
            SaveFailed: none became free in time.
        """

        def ready() -> bool:
            unfinished = [flight for flight in self._flights if not flight.ended or not flight.freed]
            return len(unfinished) < _AT_MOST

        if not self._wait(ready, timeout_s):
            raise SaveFailed(
                f"no earlier save has ended in {timeout_s:g} s; save less often, or allow a longer deadline"
            )
        used = {id(flight.arena) for flight in self._flights if not flight.freed}
        for arena in self._arenas:
            if id(arena) not in used:
                return arena
        self._arenas.append(Arena.create(f"save-{len(self._arenas)}"))
        return self._arenas[-1]

    def publish(self, arena: Arena, **fields: Any) -> Flight:
        """Hand a filled arena to the keeper.

        Raises:
            SaveFailed: the keeper is gone.
        """
        self._number += 1
        message = Publish(save=self._number, **fields)
        flight = Flight(message, arena)
        if self._client is None:
            raise SaveFailed("the process that writes checkpoints is gone")
        try:
            self._client.send(message, [arena.fd])
        except KeeperLost as error:
            raise SaveFailed(str(error)) from error
        self._flights = [one for one in self._flights if not (one.ended and one.freed and one.told)] + [flight]
        return flight

    def wait_for(self, flight: Flight, timeout_s: float) -> bool:
        """Whether the save has ended by then."""
        return self._wait(lambda: flight.ended, timeout_s)

    def wait_for_all(self) -> None:
        """Until every save has ended, which deadlines make certain."""
        for flight in self._flights:
            if not self.wait_for(flight, flight.publish.deadline_s + _GRACE_S):
                flight.problem = "the process that writes checkpoints does not answer"

    def untold(self) -> Lost:
        """The saves that failed since the last call. Nobody hears of one twice."""
        self.look()
        lost = [flight for flight in self._flights if flight.problem and not flight.told]
        for flight in lost:
            flight.told = True
        words = [f"the save of step {flight.publish.step} failed: {flight.problem}" for flight in lost]
        return Lost("; ".join(words), [flight.publish.attempt for flight in lost])

    def have_heard_of(self, attempts: Iterable[str]) -> None:
        """Another rank has told of these: our own reports of them will be no news."""
        known = set(attempts)
        for flight in self._flights:
            flight.told = flight.told or flight.publish.attempt in known

    def look(self) -> None:
        """Hear what the keeper has said; never blocks."""
        if self._client is None:
            return
        try:
            while reports := self._client.receive():
                for report in reports:
                    self._note(report)
        except KeeperLost:
            self._client.close(0)
            self._client, self._term = None, None

    def close(self, deadline_s: float) -> None:
        """End the keeper and give the memory back; saves in work are finished by the deadline, or given up."""
        if self._client is not None:
            for report in self._client.close(deadline_s):
                self._note(report)
            self._client, self._term = None, None
        for arena in self._arenas:
            arena.close()
        self._arenas = []

    def _start(self) -> None:
        if self._client is not None:
            self._client.close(0)
        self._term, self._refused = None, None
        if self._claimed:
            self._require_still_ours()
        self._client = start_keeper(self._config)

    def _require_still_ours(self) -> None:
        """Before a keeper that died is replaced, whose successor would claim a term: has somebody else done so?"""
        with contextlib.closing(open_store(self._config.store)) as store:
            history = CommitLog(store).refresh()
        if history.term > self._claimed:
            self._refused = Fenced(
                f"{self._config.store}: term {self._claimed} is over, {history.owner} has claimed term {history.term}; "
                "nothing that this process saves counts any more, so end it"
            )
            raise self._refused

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        while True:
            self.look()
            if condition():
                return True
            now_s = time.monotonic()
            if now_s >= end_s or self._client is None:
                return False
            due_s = self._client.due_s()
            until_s = end_s if due_s is None else min(end_s, due_s)
            poll = select.poll()
            poll.register(self._client.fileno(), select.POLLIN)
            poll.poll(max(0.0, until_s - now_s) * 1000 + 1)

    def _note(self, report: Any) -> None:
        match report:
            case Opened():
                self._term = report.term
                self._claimed = report.term if self._config.lead else 0
            case Refused():
                self._refused = (Fenced if report.fenced else StoreRefused)(report.problem)
            case Committed() | Kept() | SaveLost() | Freed():
                for flight in self._flights:
                    if flight.publish.save == report.save:
                        self._note_of(flight, report)

    def _note_of(self, flight: Flight, report: Committed | Kept | SaveLost | Freed) -> None:
        match report:
            case Freed():
                flight.freed = True
            case Committed():
                flight.saved = Saved(
                    report.step, report.generation, report.written_bytes, report.reused_bytes, report.seconds
                )
                flight.told = True
            case Kept():
                flight.problem = "it was not due in the durable store"
            case SaveLost():
                flight.problem = report.problem
                if not report.tier:  # the keeper did not say so itself: it is gone
                    self._settle(flight)

    def _settle(self, flight: Flight) -> None:
        """A keeper that died may have committed before: the log knows. If not, nobody shall wait for its part."""
        publish = flight.publish
        try:
            store = open_store(self._config.store)
        except CheckpointProblem:
            return  # what was reported stands
        with contextlib.closing(store), contextlib.suppress(CheckpointProblem):
            generation = CommitLog(store).refresh().attempts.get(publish.attempt)
            if generation is None:
                flight.problem += ": it was not"
                publish_failure(store, publish.attempt, publish.writers[0], flight.problem)
            else:
                flight.saved, flight.problem, flight.told = Saved(publish.step, generation, 0, 0, {}), "", True
