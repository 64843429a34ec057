"""All decisions about requests in one place: who may begin, where, and whether it is tried again. Pure.

The data path asks and tells; the policies behind it (``serve.policies``) never see a socket. The order of calls for
one request: ``admit``; if it waits, until ``done`` of another (or ``tick``) names it; ``course``; then ``place``,
``begun``, ``heard`` and ``ended`` for each attempt, with ``again`` between two of them; at last ``done``.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from closeranks.serve.policies.admission import Admission
from closeranks.serve.policies.avoidance import Asked, Dependencies
from closeranks.serve.policies.breaker import Ticket
from closeranks.serve.policies.fleet import Fleet, Question
from closeranks.serve.policies.health import Check, Finding
from closeranks.serve.policies.hedging import Alike, Hedging
from closeranks.serve.policies.ladder import Course, Ladder, LevelSettings, Moved, Signals
from closeranks.serve.policies.limiter import Limiter
from closeranks.serve.policies.redundancy import Quarantine, sampled
from closeranks.serve.policies.retry_budget import Permit, RetryBudget, backoff_s
from closeranks.serve.policies.router import Load
from closeranks.serve.policies.tenants import TenantSettings
from closeranks.serve.policies.window import Durations, Tally
from closeranks.serve.settings import Settings
from closeranks.serve.words import (
    NEVER_S,
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

SIGNALS_S: Final = 10.0  # what the ladder looks at
_P99: Final = 0.99
_BUSY_STEPS: Final = 2  # doublings of the pause
_FREE_PART: Final = 0.75  # of the retry budget, for free tenants where others are premium
_STANDARD: Final = 3  # the class whose queue the ladder looks at
_FAULTS: Final = frozenset({Outcome.BROKEN, Outcome.SLOW, Outcome.UNREACHED, Outcome.BUSY})


class _Life(msgspec.Struct):
    """What is remembered of a request until it is done."""

    counted: bool = True  # by the admission; what goes on after its gateway has died never asked for it
    begun: bool = False
    course: Course | None = None
    began_s: float = 0.0
    first_byte_s: float | None = None
    sent: bool = False
    last: Outcome | None = None
    permit: Permit | None = None
    hedged: str = ""  # the replica that was asked, too; once a request
    hedge: Permit | None = None
    tickets: dict[str, Ticket] = {}
    retry_after_s: float | None = None
    asked: dict[str, Asked] = {}  # of dependencies, by the replica that may ask them
    less: bool = False  # it was answered without one of them
    beside: frozenset[str] = frozenset()  # replicas that execute it for a comparison


class Traffic:
    """The policies of one gateway process; ``part`` of all traffic is its own if several share the replicas."""

    def __init__(self, settings: Settings, random: Random, *, part: float = 1.0) -> None:
        self._settings = settings
        self._random = random
        loads = [
            (
                replica.tier,
                Load(
                    name=replica.name,
                    capacity=float(replica.capacity),
                    domain=replica.domain,
                    standby=replica.role == "standby",
                ),
            )
            for replica in settings.replica
        ]
        self.fleet = Fleet(loads, settings.health, settings.breaker, settings.routing)
        self.budget = RetryBudget(settings.budget, part=part)
        self._capacity = part * sum(load.capacity for _, load in loads if not load.standby)
        self.hedging = Hedging(settings.hedging)
        self._engines = {replica.name: replica.engine for replica in settings.replica}
        self.limiter = Limiter(settings.limiter, self._capacity)
        tenants = tuple(_part_of(tenant, part) for tenant in settings.tenant)
        self.admission = Admission(settings.admission, tenants, self.limiter.limit)
        self.ladder = Ladder(settings.ladder)
        self.dependencies = Dependencies(settings.dependency)
        self.quarantine = Quarantine(settings.redundancy)
        self._has_premium = any(tenant.premium for tenant in settings.tenant)
        self._lives: dict[int, _Life] = {}
        self._latencies = Durations(SIGNALS_S)
        self._good, self._bad = Tally(SIGNALS_S), Tally(SIGNALS_S)

    def inherit(self, before: Traffic) -> None:
        """Go on from what ``before`` has learned, wherever that is about something that is still there.

        Replicas at the same address keep their breaker, judgement and work, and stay out if they were taken out; the
        concurrency limit goes along with their capacity. Everything else is kept if its section is the same. Requests
        that have begun end with ``before``, on what both share from now on.
        """
        was, now = before._settings, self._settings
        old = {(replica.name, replica.url, replica.tier) for replica in was.replica}
        stay = [r.name for r in now.replica if (r.name, r.url, r.tier) in old]
        self.fleet.adopt({name: before.fleet.members[name] for name in stay}, judged=was.probe == now.probe)
        before.limiter.retune(now.limiter, self._capacity)
        before.quarantine.retune(now.redundancy, stay)
        self.limiter, self.quarantine, self._lives = before.limiter, before.quarantine, before._lives
        self._latencies, self._good, self._bad = before._latencies, before._good, before._bad
        if was.budget == now.budget:
            self.budget = before.budget
        if was.hedging == now.hedging:
            self.hedging = before.hedging
        if was.ladder == now.ladder:
            self.ladder = before.ladder
        if (was.admission, was.tenant) == (now.admission, now.tenant):
            self.admission = before.admission
        self.admission.limit = self.limiter.limit
        self.dependencies.inherit(before.dependencies.by_name)

    # --- the life of a request --------------------------------------------------------------------------------------

    def admit(self, now_s: float, ask: Ask) -> Admitted | Waits | Shed:
        """Whether the request may begin."""
        answer = self.admission.admit(now_s, ask)
        if not isinstance(answer, Shed):
            self._lives[ask.number] = _Life(begun=isinstance(answer, Admitted), began_s=now_s)
        return answer

    def course(self, now_s: float, ask: Ask) -> Course:
        """How much of the service it gets; the level is ``ladder.levels[course.level].settings``."""
        life = self._life(now_s, ask)
        life.course = self.ladder.course(now_s, lambda level: self._able(now_s, level))
        return life.course

    def place(self, now_s: float, ask: Ask, tried: tuple[str, ...]) -> Placed | Nowhere:
        """Where its next attempt goes; ``tried`` are replicas that have failed it, the last one last."""
        tier = self._level(ask).tier
        question = Question(tier=tier, session=ask.session, tried=tried, probes=ask.repeatable)
        return self.fleet.place(now_s, question)

    def elsewhere(self, now_s: float, ask: Ask, replica: str) -> bool:
        """Whether a stream that is slow at this replica would be better off at another one."""
        del ask
        return self.fleet.elsewhere(now_s, replica)

    def begun(self, now_s: float, ask: Ask, replica: str, kind: Kind) -> None:
        """An attempt goes out."""
        life = self._life(now_s, ask)
        if kind is Kind.FIRST and not life.sent:
            self.budget.began(now_s, ask.cost)
        life.sent = True
        if kind is Kind.DOUBLE:
            life.beside |= {replica}
        life.tickets[replica] = self.fleet.begin(now_s, replica, ask.cost)

    def without(self, now_s: float, ask: Ask, replica: str) -> tuple[str, ...]:
        """The dependencies that this replica is to do without, in the attempt that goes out now."""
        asked = self._life(now_s, ask).asked[replica] = self.dependencies.ask(now_s)
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
        life = self._life(now_s, ask)
        ticket = life.tickets.get(replica)
        if ticket is not None:
            life.tickets[replica] = self.fleet.heard(now_s, replica, ticket)
        if life.first_byte_s is None:
            life.first_byte_s = now_s - life.began_s
            self._latencies.add(now_s, life.first_byte_s)
            self.hedging.heard(now_s, self._alike(ask), life.first_byte_s)
            self.limiter.took(now_s, life.first_byte_s, self.admission.in_flight)
            self.admission.limit = self.limiter.limit

    def ended(self, now_s: float, ask: Ask, replica: str, outcome: Outcome, retry_after_s: float | None = None) -> None:
        """An attempt is over; ``retry_after_s`` is what the replica asks for if it is busy."""
        life = self._life(now_s, ask)
        if replica in life.asked:
            self.depended(now_s, ask, replica, b"")
        if replica in life.beside:
            life.beside -= {replica}
        else:
            life.last, life.retry_after_s = outcome, retry_after_s
        ticket = life.tickets.pop(replica, None)
        if ticket is not None:
            self.fleet.end(now_s, replica, ticket, outcome, ask.cost)
        if outcome is Outcome.BUSY and retry_after_s is not None:
            self.fleet.busy(now_s, replica, retry_after_s)
        self.limiter.refused(now_s, outcome)
        self.admission.limit = self.limiter.limit
        if life.hedge is not None and replica == life.hedged:
            self._return_hedge(life)
        else:
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
        if not (self._settings.hedging.enabled and ask.repeatable) or self._life(now_s, ask).hedged:
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
        self._return_permit(life)
        self._return_hedge(life)
        for replica, ticket in life.tickets.items():
            self.fleet.end(now_s, replica, ticket, Outcome.GONE, ask.cost)
        for asked in life.asked.values():
            self.dependencies.answered(now_s, asked, b"")
        if life.sent:
            self.budget.ended(ask.cost)
        if life.begun:
            self._count(now_s, ask, life)
        if not life.counted:
            return ()
        return self._begin(now_s, self.admission.done(now_s, ask, begun=life.begun))

    def tick(self, now_s: float) -> tuple[int, ...]:
        """Call it once or twice a second: the ladder looks around; queued requests that may begin now."""
        self.ladder.signal(now_s, self.signals(now_s))
        self.admission.limit = self.limiter.limit
        return self._begin(now_s, self.admission.next(now_s))

    def _life(self, now_s: float, ask: Ask) -> _Life:
        life = self._lives.get(ask.number)
        if life is None:
            life = self._lives[ask.number] = _Life(counted=False, began_s=now_s)
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

    def _return_permit(self, life: _Life) -> None:
        if life.permit is not None:
            self.budget.give_back(life.permit)
            life.permit = None

    def _return_hedge(self, life: _Life) -> None:
        if life.hedge is not None:
            self.budget.give_back(life.hedge)
            life.hedge = None

    def _part_for(self, ask: Ask) -> float:
        """Of the retry budget."""
        return 1.0 if ask.premium or not self._has_premium else _FREE_PART

    def _alike(self, ask: Ask) -> Alike:
        return Alike(self._level(ask).tier, ask.model, ask.stream)

    def _count(self, now_s: float, ask: Ask, life: _Life) -> None:
        late = now_s >= ask.deadline_s
        if late and life.first_byte_s is None:
            self._latencies.add(now_s, now_s - life.began_s)
        failed = late or life.last is None or life.last in _FAULTS
        if life.last is not Outcome.GONE or late:
            (self._bad if failed else self._good).add(now_s)
        if life.course is not None and (life.last is not Outcome.GONE or late):
            self.ladder.ended(now_s, life.course, None if failed else life.first_byte_s, less=life.less)

    # --- what the checks say ----------------------------------------------------------------------------------------

    def checked(self, now_s: float, replica: str, check: Check, finding: Finding, detail: str = "") -> bool:
        """A check of a replica has ended; whether this has changed what is thought of it."""
        if check is Check.KNOWN_ANSWER:
            released = self.quarantine.checked(replica, right=finding is Finding.PASS)
            if released:
                self.fleet.readmit(replica)
        return self.fleet.members[replica].judge.found(now_s, check, finding, detail)

    def readmit(self, replica: str) -> None:
        """Somebody vouches for it: it is asked again."""
        self.quarantine.release(replica)
        self.fleet.readmit(replica)

    def distrust(self, replica: str, reason: str) -> None:
        """A vote was against this replica: it is out until its known answers were right again."""
        self.quarantine.add(replica, reason)
        self.fleet.take_out(replica, f"quarantined: {reason}")

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

    def compares(self, now_s: float) -> int | None:
        """The level that is asked what the full service has just answered, to measure it; None: none is."""
        count, share = len(self.ladder.levels), self._settings.ladder.compare_share
        if count == 1 or not share or self.ladder.level or self._random.random() >= share:
            return None
        level = self._random.randrange(count)
        if self.ladder.levels[level].settings.kind != "model":
            return level
        permit = self.budget.take(now_s, Kind.DOUBLE)
        if permit is None:
            return None
        self.budget.give_back(permit)
        return level

    def probe_allowed(self, now_s: float) -> bool:
        """Whether the budget has room for a request of the gateway's own."""
        permit = self.budget.take(now_s, Kind.PROBE)
        if permit is not None:
            self.budget.give_back(permit)
        return permit is not None

    # --- what others see --------------------------------------------------------------------------------------------

    def signals(self, now_s: float) -> Signals:
        """What the ladder looks at."""
        good, bad = self._good.total(now_s), self._bad.total(now_s)
        wait_s = self.admission.wait_s(now_s, _STANDARD)
        return Signals(
            p99_s=self._latencies.quantile(now_s, _P99),
            error_rate=bad / (good + bad) if good + bad else None,
            queue_s=None if wait_s == NEVER_S else wait_s,
            dependency_s=self.dependencies.p99_s(now_s),
        )

    def force_level(self, now_s: float, level: int | None) -> Moved | None:
        """See ``Ladder.force``."""
        return self.ladder.force(now_s, level)


def _part_of(tenant: TenantSettings, part: float) -> TenantSettings:
    """One process's part of a quota; never less than one request, or nothing would ever pass."""
    burst = max(1.0, tenant.burst * part) if tenant.burst else 0.0
    in_flight = max(1.0, tenant.in_flight * part)
    return msgspec.structs.replace(tenant, per_s=tenant.per_s * part, burst=burst, in_flight=in_flight)
