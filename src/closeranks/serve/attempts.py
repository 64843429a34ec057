"""The attempts of one request at replicas: where each goes, when it is over, and whether another one follows."""

from __future__ import annotations

import asyncio
import functools
from abc import abstractmethod
from typing import Final

from closeranks.serve.attempt import Attempt
from closeranks.serve.entrance import Entrance
from closeranks.serve.fallbacks import WITHOUT
from closeranks.serve.http.head import first
from closeranks.serve.http.upstream import Cut
from closeranks.serve.policies.retry_budget import retry_after_s
from closeranks.serve.race import Race
from closeranks.serve.relay import Finished, NoResume, Prepare
from closeranks.serve.replica import Replica
from closeranks.serve.silence import Watch, due_s
from closeranks.serve.story import Visit
from closeranks.serve.wheel import Due
from closeranks.serve.wording import Words
from closeranks.serve.words import Again, Enough, Kind, Nowhere, Outcome

_TIMEOUT, _BAD_GATEWAY = 504, 502
_BUSY: Final = Outcome.BUSY  # on Python 3.11 a member of an Enum is found by calling a function


class Attempts(Entrance, eq=False, kw_only=True):
    """What an exchange asks of replicas, one after the other."""

    _replicas: dict[str, Replica]  # those that its traffic knows, whatever is read again meanwhile
    attempt: Attempt | None = None
    _tried: tuple[str, ...] = ()  # replicas that have failed it
    _race: Race | None = None
    _watch: Watch | None = None
    _pause: Due | None = None
    _held_back: bool = False  # until the engine has said what it used of a snapshot
    _bringing: asyncio.Task[None] | None = None  # what its session's replica is to know before it is asked

    def _dispatch(self) -> None:
        placed = self.traffic.place(self._gateway.now_s(), self.ask, self._tried)
        if isinstance(placed, Nowhere):
            self._give_up(placed.status, placed.reason, placed.retry_after_s)
        else:
            self._send(self._replicas[placed.replica])

    def _send(self, replica: Replica) -> None:
        if (snapshots := self._gateway.snapshots) is not None:
            then = functools.partial(self._ask, replica)
            self._bringing = snapshots.bring(replica, self._request, self.ask, then)
            if self._bringing is not None:
                return
        self._ask(replica)

    def _ask(self, replica: Replica) -> None:
        relay, words, preparing = self.relay, None, False
        if relay is not None:
            match relay.plan(replica.settings.engine):
                case NoResume() as refusal:
                    self._give_up(_BAD_GATEWAY, refusal.reason)
                    return
                case Finished() as finished:
                    self._tell(finished.data)
                    self._finish()
                    return
                case plan:
                    words, preparing = Words(plan.target, plan.body), isinstance(plan, Prepare)
            if not preparing:
                relay.begin()
        attempt = self.open(replica, self._kind, words, preparing=preparing)
        self.attempt, self._held_back = attempt, False
        self._look_in_time(attempt)
        if self.traffic.hedging.enabled and not self._client.started:
            after_s = self.traffic.hedge_after_s(attempt.heard_s, self.ask)
            self._race = None if after_s is None else Race(self._gateway, self, attempt, after_s)

    def open(self, replica: Replica, kind: Kind, words: Words | None, *, preparing: bool = False) -> Attempt:
        """Ask a replica; ``words`` are those that are not the request's own."""
        now_s, ask = self._gateway.now_s(), self.ask
        visit = Visit(replica.name, kind, now_s)
        self.story.visits.append(visit)
        self.traffic.begun(now_s, ask, replica.name, kind)
        attempt = Attempt(self, replica, visit, words, now_s, preparing)
        gateway, request = self._gateway, self._request
        more = self._told(attempt, now_s) if self.traffic.dependencies.by_name else b""
        if gateway.snapshots is not None and not preparing:
            own = Words(request.target, request.body)
            words = gateway.snapshots.worded(replica, ask, self.relay, words or own)
        data, head_only = gateway.wording.spell(request, replica, ask, now_s, words, more), request.method == b"HEAD"
        if gateway.drills.drill is None:
            attempt.send(data, head_only=head_only)
        else:
            gateway.drills.send(attempt, functools.partial(attempt.send, data, head_only=head_only))
        return attempt

    def _told(self, attempt: Attempt, now_s: float) -> bytes:
        """What the replica is to do without, as a line of its head."""
        name, drills = attempt.replica.name, self._gateway.drills
        without = self.traffic.without(now_s, self.ask, name)
        if drills.drill is not None and (taken := drills.without(attempt, without)):
            without = self.traffic.deprive(now_s, self.ask, name, taken)
        return b"%b: %b\r\n" % (WITHOUT, ", ".join(without).encode()) if without else b""

    def _look_in_time(self, attempt: Attempt) -> None:
        """See to it that the clock is looked at when this attempt, or the request, may have taken too long."""
        if self._watch is not None:
            self._watch.follow(attempt)
        elif due_s(self._gateway, self, attempt) < self._gateway.next_look_s:
            self._watch = Watch(self._gateway, self)

    def look(self) -> None:
        """The gateway looks at all exchanges: whoever has lasted until now gets a timer."""
        if self._watch is None and self.story.visits and not self.over:
            self._watch = Watch(self._gateway, self)

    # --- endings ----------------------------------------------------------------------------------------------------

    def leave_to(self, attempt: Attempt, other: Attempt, outcome: Outcome, detail: str) -> None:
        """Of two attempts that were under way this one goes on; the other one is over."""
        self.end(other, outcome, detail)
        if outcome is not Outcome.GONE:
            self._tried += (other.replica.name,)
        self.attempt, self._held_back = attempt, False
        self._look_in_time(attempt)

    def too_late(self) -> None:
        """The deadline of the request has passed."""
        self._let_go()
        self._give_up(_TIMEOUT, "the deadline of the request has passed")

    def silent(self, attempt: Attempt, silent_s: float) -> None:
        """The replica is not waited for any longer."""
        attempt.give_up()
        self.on_cut(attempt, Cut.SILENT, f"silent for {silent_s:.2f} s")
        if attempt.body:  # a stream knows its replica's pace; whoever waits there for a first byte does not
            self._gateway.abandon(attempt.replica.name, "silent to everybody", waiting_only=True)

    def abandon(self, replica: str, reason: str, *, waiting_only: bool) -> None:
        """What this replica was asked is asked of another one."""
        for attempt in (self.attempt, None if self._race is None else self._race.hedge):
            if attempt is not None and attempt.replica.name == replica and not (waiting_only and attempt.body):
                attempt.give_up()
                self.on_cut(attempt, Cut.RESET, reason)
                return

    def _let_go(self) -> None:
        self._end_attempt(Outcome.GONE)

    def _end_attempt(self, outcome: Outcome, detail: str = "") -> None:
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self.end(attempt, outcome, detail)

    def end(self, attempt: Attempt, outcome: Outcome, detail: str = "") -> None:
        """The attempt is over; its replica, if it still works on it, hears of it."""
        attempt.exchange = None
        if attempt.connection is not None or attempt.task is not None:
            attempt.give_up()
        visit, now_s = attempt.visit, self._gateway.now_s()
        visit.ended_s, visit.outcome, visit.detail = now_s, outcome, detail
        wait_s = retry_after_s(first(attempt.headers, b"retry-after")) if outcome is _BUSY else None
        self.traffic.ended(now_s, self.ask, visit.replica, outcome, wait_s)
        if self._gateway.snapshots is not None:
            self._gateway.snapshots.ended(attempt, self.ask, outcome, self.relay)

    # --- another one ------------------------------------------------------------------------------------------------

    def _again(self, kind: Kind) -> Again | Enough:
        self._kind = kind
        return self.traffic.again(self._gateway.now_s(), self.ask, kind, self._tried)

    def _after(self, pause_s: float) -> None:
        if pause_s <= 0:
            self._dispatch()
        else:
            self._pause = self._gateway.at(self._gateway.now_s() + pause_s, self._dispatch)

    # --- what a replica says ----------------------------------------------------------------------------------------

    @abstractmethod
    def on_head(self, attempt: Attempt) -> None:
        """Status and headers."""

    @abstractmethod
    def on_data(self, attempt: Attempt, data: bytes) -> None:
        """Some of the body."""

    @abstractmethod
    def on_end(self, attempt: Attempt) -> None:
        """The answer is complete, as far as HTTP can tell."""

    @abstractmethod
    def on_cut(self, attempt: Attempt, cut: Cut, detail: str) -> None:
        """The answer will not be complete."""
