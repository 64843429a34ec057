"""All decisions about requests in one place: who may begin, where, and whether it is tried again. Pure.

The data path asks and tells; the policies behind it (``serve.policies``) never see a socket. The order of calls for
one request: ``admit``; if it waits, until ``done`` of another (or ``tick``) names it; ``course``; then ``place``,
``begun``, ``heard`` and ``ended`` for each attempt, with ``again`` between two of them; at last ``done``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from closeranks.serve.life import Life
from closeranks.serve.policies.fleet import Question
from closeranks.serve.policies.hedging import Alike
from closeranks.serve.policies.ladder import IN_FULL, Course, LevelSettings
from closeranks.serve.policies.limiter import REFUSALS
from closeranks.serve.policies.redundancy import sampled
from closeranks.serve.policies.retry_budget import backoff_s
from closeranks.serve.policy_set import Policies
from closeranks.serve.words import (
    Admitted,
    Again,
    Ask,
    Enough,
    Kind,
    Nowhere,
    Outcome,
    Placed,
    Shed,
    Waits,
)

_BUSY_STEPS: Final = 2  # doublings of the pause
_FREE_PART: Final = 0.75  # of the retry budget, for free tenants where others are premium
_FIRST: Final = Kind.FIRST  # on Python 3.11 a member of an Enum is found by calling a function
_DOUBLE: Final = Kind.DOUBLE
_GONE: Final = Outcome.GONE
_FAULTS: Final = frozenset({Outcome.BROKEN, Outcome.SLOW, Outcome.UNREACHED, Outcome.BUSY})


class Traffic(Policies):
    """See Policies; and each request's life under them."""

    # --- the life of a request --------------------------------------------------------------------------------------

    def admit(self, now_s: float, ask: Ask) -> Admitted | Waits | Shed:
        """Whether the request may begin."""
        answer = self.admission.admit(now_s, ask)
        if not isinstance(answer, Shed):
            course = IN_FULL if ask.laddered and not self.has_ladder else None  # else it is yet to be asked for
            self._lives[ask.number] = Life(True, isinstance(answer, Admitted), course, now_s)
        return answer

    def course(self, now_s: float, ask: Ask) -> Course:
        """How much of the service it gets; the level is ``ladder.levels[course.level].settings``."""
        life = self._lives.get(ask.number) or self._life(now_s, ask)
        life.course = self.ladder.course(now_s, lambda level: self._able(now_s, level))
        return life.course

    def place(self, now_s: float, ask: Ask, tried: tuple[str, ...]) -> Placed | Nowhere:
        """Where its next attempt goes; ``tried`` are replicas that have failed it, the last one last."""
        tier = self._level(ask).tier if self.has_ladder else ""
        return self.fleet.place(now_s, Question(tier, ask.session, tried, ask.repeatable))

    def elsewhere(self, now_s: float, ask: Ask, replica: str) -> bool:
        """Whether a stream that is slow at this replica would be better off at another one."""
        del ask
        return self.fleet.elsewhere(now_s, replica)

    def begun(self, now_s: float, ask: Ask, replica: str, kind: Kind) -> None:
        """An attempt goes out."""
        life = self._lives.get(ask.number) or self._life(now_s, ask)
        if kind is _FIRST and not life.sent:
            self.budget.began(now_s, ask.cost)
        life.sent = True
        if kind is _DOUBLE:
            life.beside |= {replica}
        life.tickets[replica] = self.fleet.begin(now_s, replica, ask.cost)

    def without(self, now_s: float, ask: Ask, replica: str) -> tuple[str, ...]:
        """The dependencies that this replica is to do without, in the attempt that goes out now."""
        asked = self._life(now_s, ask).asked[replica] = self.dependencies.ask(now_s)
        return asked.without

    def deprive(self, now_s: float, ask: Ask, replica: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """It is to do without these, too, though they may be asked; without what it is to do in all."""
        asked = self._life(now_s, ask).asked[replica]
        asked.without += names
        return asked.without

    def depended(self, now_s: float, ask: Ask, replica: str, report: bytes) -> tuple[str, ...]:
        """Its answer has begun, with this ``Server-Timing``; what it was answered without."""
        life = self._life(now_s, ask)
        asked = life.asked.pop(replica, None)
        if asked is None:
            return ()
        self.dependencies.answered(now_s, asked, report)
        life.less = bool(asked.without)
        return asked.without

    def heard(self, now_s: float, ask: Ask, replica: str) -> None:
        """The replica has begun to answer this request."""
        life = self._lives.get(ask.number) or self._life(now_s, ask)
        ticket = life.tickets.get(replica)
        if ticket is not None:
            life.tickets[replica] = self.fleet.heard(now_s, replica, ticket)
        if life.first_byte_s is None:
            life.first_byte_s = now_s - life.began_s
            if self.has_ladder:
                self._latencies.add(now_s, life.first_byte_s)
            if self.hedging.enabled:
                self.hedging.heard(now_s, self._alike(ask), life.first_byte_s)
            self.limiter.took(now_s, life.first_byte_s, self.admission.in_flight)
            self.admission.limit = self.limiter.limit

    def ended(self, now_s: float, ask: Ask, replica: str, outcome: Outcome, retry_after_s: float | None = None) -> None:
        """An attempt is over; ``retry_after_s`` is what the replica asks for if it is busy."""
        life = self._lives.get(ask.number) or self._life(now_s, ask)
        if life.asked:
            self.depended(now_s, ask, replica, b"")
        if replica in life.beside:
            life.beside -= {replica}
        else:
            life.last, life.retry_after_s = outcome, retry_after_s
        ticket = life.tickets.pop(replica, None)
        if ticket is not None:
            self.fleet.end(now_s, replica, ticket, outcome, ask.cost)
        if outcome in REFUSALS:
            if retry_after_s is not None:
                self.fleet.busy(now_s, replica, retry_after_s)
            self.limiter.refused(now_s, outcome)
            self.admission.limit = self.limiter.limit
        if life.hedge is not None and replica == life.hedged:
            self._return_hedge(life)
        elif life.permit is not None:
            self._return_permit(life)

    def again(self, now_s: float, ask: Ask, kind: Kind, tried: tuple[str, ...]) -> Again | Enough:
        """Whether the work may be tried once more, as ``kind``; ``tried`` have failed it, the last one last."""
        life, settings, tries = self._life(now_s, ask), self._settings.budget, len(tried)
        wait_s = life.retry_after_s
        if not ask.repeatable and life.last is not Outcome.UNREACHED:
            return Enough(reason="repeating it could do harm", retry_after_s=wait_s)
        if tries >= settings.tries:
            return Enough(reason=f"{tries} attempts have failed", retry_after_s=wait_s)
        # Back-pressure does not pass as quickly as one replica's fault is avoided.
        step = tries + (_BUSY_STEPS if life.last is Outcome.BUSY else 0)
        pause_s = 0.0 if kind is Kind.RESUME and tries == 1 else backoff_s(settings, self._random, step)
        if wait_s is not None and not self.fleet.others_free(now_s, tried[-1]):
            if wait_s > settings.retry_after_max_s:
                return Enough(reason=f"the replica asks for {wait_s:g} s", retry_after_s=wait_s)
            pause_s += wait_s
        if now_s + pause_s >= ask.deadline_s:
            return Enough(reason="its deadline would pass before the next attempt", retry_after_s=wait_s)
        permit = self.budget.take(now_s, kind, ask.cost, self._part_for(ask))
        if permit is None:
            return Enough(reason="the budget for retries is used up", retry_after_s=wait_s)
        self._return_permit(life)
        life.permit = permit
        return Again(after_s=pause_s)

    def hedge_after_s(self, now_s: float, ask: Ask) -> float | None:
        """How long an attempt may be without its first byte before ``hedge`` is asked; None: it is not hedged."""
        if not (self.hedging.enabled and ask.repeatable) or self._life(now_s, ask).hedged:
            return None
        return self.hedging.after_s(now_s, self._alike(ask))

    def hedge(self, now_s: float, ask: Ask, replica: str, asked: frozenset[str]) -> str:
        """A second replica for what this one has not begun to answer; empty: nobody is asked, too.

        It is of the same engine, so that the same words mean the same to it, and none of those that were ``asked``.
        """
        life, engine = self._life(now_s, ask), self._engines[replica]
        alike = [name for name, other in self._engines.items() if other == engine and name not in asked]
        second = self.fleet.second(now_s, replica, alike)
        if second:
            life.hedge = self.budget.take(now_s, Kind.HEDGE, ask.cost, self._part_for(ask))
        if life.hedge is None:
            return ""
        life.hedged = second
        return second

    def answered(self, now_s: float, ask: Ask) -> None:
        """The request is answered without a replica: from the cache, or with a fixed answer."""
        life = self._life(now_s, ask)
        life.last, life.first_byte_s = Outcome.OK, now_s - life.began_s

    def done(self, now_s: float, ask: Ask) -> tuple[int, ...]:
        """The request is over, however it ended; the numbers of queued requests that may begin now."""
        life = self._lives.pop(ask.number, None)
        if life is None:
            return ()
        if life.permit is not None or life.hedge is not None:
            self._return_permit(life)
            self._return_hedge(life)
        for replica, ticket in life.tickets.items():
            self.fleet.end(now_s, replica, ticket, Outcome.GONE, ask.cost)
        if life.asked:
            for asked in life.asked.values():
                self.dependencies.answered(now_s, asked, b"")
        if life.sent:
            self.budget.ended(ask.cost)
        if life.begun:
            self._count(now_s, ask, life)
        if not life.counted:
            return ()
        following = self.admission.done(now_s, ask, begun=life.begun)
        return self._begin(now_s, following) if following else ()

    def tick(self, now_s: float) -> tuple[int, ...]:
        """Call it once or twice a second: the ladder looks around; queued requests that may begin now."""
        if self.has_ladder:
            self.ladder.signal(now_s, self.signals(now_s))
        self.admission.limit = self.limiter.limit
        return self._begin(now_s, self.admission.next(now_s))

    def _life(self, now_s: float, ask: Ask) -> Life:
        life = self._lives.get(ask.number)
        if life is None:
            life = self._lives[ask.number] = Life(counted=False, began_s=now_s)
        return life

    def _level(self, ask: Ask) -> LevelSettings:
        life = self._lives.get(ask.number)
        level = 0 if life is None or life.course is None else life.course.level
        return self.ladder.levels[level].settings

    def _able(self, now_s: float, level: LevelSettings) -> bool:
        return level.kind != "model" or self.fleet.able(now_s, level.tier)

    def _begin(self, now_s: float, asks: Sequence[Ask]) -> tuple[int, ...]:
        for ask in asks:
            life = self._lives.get(ask.number)
            if life is not None:
                life.begun, life.began_s = True, now_s
        return tuple(ask.number for ask in asks)

    def _return_permit(self, life: Life) -> None:
        if life.permit is not None:
            self.budget.give_back(life.permit)
            life.permit = None

    def _return_hedge(self, life: Life) -> None:
        if life.hedge is not None:
            self.budget.give_back(life.hedge)
            life.hedge = None

    def _part_for(self, ask: Ask) -> float:
        """Of the retry budget."""
        return 1.0 if ask.premium or not self._has_premium else _FREE_PART

    def _alike(self, ask: Ask) -> Alike:
        return Alike(self._level(ask).tier, ask.model, ask.stream)

    def _count(self, now_s: float, ask: Ask, life: Life) -> None:
        late = now_s >= ask.deadline_s
        if life.last is _GONE and not late:
            return
        failed = late or life.last is None or life.last in _FAULTS
        if self.has_ladder:
            if life.first_byte_s is None and late:
                self._latencies.add(now_s, now_s - life.began_s)
            (self._bad if failed else self._good).add(now_s)
        if life.course is not None:
            self.ladder.ended(now_s, life.course, None if failed else life.first_byte_s, less=life.less)

    # --- comparisons ------------------------------------------------------------------------------------------------

    def doubled(self, now_s: float, ask: Ask, replica: str) -> str:
        """The replica that executes this request, too; empty: it is not compared."""
        if not ask.comparable or ask.stream or not sampled(self._settings.redundancy, self._random):
            return ""
        placed = self.fleet.place(now_s, Question(tier=self._level(ask).tier, tried=(replica,), probes=False))
        if isinstance(placed, Nowhere) or placed.replica == replica:
            return ""
        permit = self.budget.take(now_s, Kind.DOUBLE, ask.cost)
        if permit is None:
            return ""
        self.budget.give_back(permit)
        return placed.replica
