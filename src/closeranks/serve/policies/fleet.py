"""The replicas together: who may be asked now, and who is. Pure.

Health takes a replica out when its checks fail, a breaker when its requests do, an operator or a vote whenever they
say so. The first two may be wrong about all of them at once, for reasons of their own: so below a share of replicas
that are well the fleet *panics*: it says so, asks what the checks call down after all others, and lets a breaker's
probe through after a second. What an operator or a vote has taken out stays out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from closeranks.serve.policies.breaker import Breaker, BreakerSettings, State, Ticket
from closeranks.serve.policies.health import FAULTS, Grade, HealthSettings, Judge
from closeranks.serve.policies.router import Load, Router, RoutingSettings
from closeranks.serve.words import Nowhere, Outcome, Placed

PANIC_OPEN_S: Final = 1.0
_CLOSED: Final = State.CLOSED  # see policies.breaker
_OUTCOME_BUSY: Final = Outcome.BUSY
_BUSY_S: Final = 0.5  # a replica that says no more than that it is busy is left alone for so long
_OUT_S: Final = 5.0
_NO_DOMAINS: Final[frozenset[str]] = frozenset()
_AT_BEST, _DOUBTFUL, _BUSY, _TRIED, _DOWN, _LAST = range(6)


class Question(msgspec.Struct, frozen=True, gc=False):
    """Where one attempt is to go."""

    tier: str = ""
    session: str = ""
    tried: tuple[str, ...] = ()  # replicas that have failed this request, the last one last
    probes: bool = True  # it may serve as a breaker's probe


class Member(msgspec.Struct, kw_only=True):
    """One replica and all that is known of it."""

    load: Load
    tier: str
    judge: Judge
    breaker: Breaker
    out: str = ""  # why it is taken out; it still ends what it has begun
    busy_until_s: float = 0.0


class Fleet:
    """The replicas of a gateway, as one process sees them."""

    def __init__(
        self,
        replicas: Sequence[tuple[str, Load]],
        health: HealthSettings,
        breaker: BreakerSettings,
        routing: RoutingSettings,
    ) -> None:
        self._health, self._breaker, self._routing = health, breaker, routing
        self.members = {
            load.name: Member(load=load, tier=tier, judge=Judge(health), breaker=Breaker(breaker))
            for tier, load in replicas
        }
        self._tiers = self._by_tier()
        self._routers = {tier: Router(routing, [m.load for m in ms]) for tier, ms in self._tiers.items()}

    def adopt(self, known: Mapping[str, Member], *, judged: bool) -> None:
        """These replicas were here before: keep what was learned of them, and the work that they are still at.

        ``judged``: their checks are the same as before, so that what was found counts. Each is of its tier still.
        """
        for name, member in known.items():
            new = self.members[name]
            load = member.load
            load.capacity, load.domain, load.standby = new.load.capacity, new.load.domain, new.load.standby
            load.asked = 0  # choices are counted anew
            member.breaker.retune(self._breaker)
            if judged:
                member.judge.retune(self._health)
            else:
                member.judge = new.judge
            self.members[name] = member
        self._tiers = self._by_tier()

    def _by_tier(self) -> dict[str, list[Member]]:
        tiers: dict[str, list[Member]] = {}
        for member in self.members.values():
            tiers.setdefault(member.tier, []).append(member)
        return tiers

    def place(self, now_s: float, question: Question) -> Placed | Nowhere:
        """The replica for an attempt."""
        members = self._tiers.get(question.tier, ())
        tried = question.tried
        well = [
            member.load
            for member in members
            if member.judge.spotless
            and member.breaker.state is _CLOSED
            and not member.out
            and member.busy_until_s <= now_s
            and member.load.name not in tried
        ]
        if len(well) + len(tried) == len(members) and well:  # nothing speaks against any of them
            return self._placed(question, well, "")
        return self._place_with_care(now_s, question, members)

    def _place_with_care(self, now_s: float, question: Question, members: Sequence[Member]) -> Placed | Nowhere:
        ranked: list[list[Load]] = [[] for _ in range(_LAST + 1)]
        probes: list[Load] = []
        for member in members:
            if member.out:
                continue
            grade = self._rank(now_s, member, question.tried)
            if member.breaker.state is State.CLOSED:
                ranked[grade].append(member.load)
            elif member.breaker.wants_probe(now_s) and grade != _DOWN:
                probes.append(member.load)
        if probes and question.probes and not question.tried:
            return self._placed(question, probes, "probe of its breaker")
        for grade, loads in enumerate(ranked):
            if loads and (grade != _DOWN or self.panics(now_s, question.tier)):
                return self._placed(question, loads, "panic: its checks fail" if grade == _DOWN else "")
        return self._at_worst(now_s, question, members, probes)

    def second(self, now_s: float, replica: str, among: Collection[str]) -> str:
        """One of ``among`` that is well and of this replica's tier, to do the same work; empty: there is none.

        It is in another failure domain if there is such a one.
        """
        member = self.members[replica]
        well = [
            other.load
            for other in self._tiers[member.tier]
            if other.load.name in among
            and other.load.name != replica
            and not other.out
            and other.busy_until_s <= now_s
            and other.breaker.state is State.CLOSED
            and other.judge.grade(now_s) is Grade.UP
        ]
        if not well:
            return ""
        domains = frozenset({member.load.domain}) - {""}
        return self._routers[member.tier].choose(well, failed_domains=domains).load.name

    def able(self, now_s: float, tier: str) -> bool:
        """Whether a replica of this tier can be asked without panic."""
        return any(
            not member.out and not member.breaker.blocks(now_s) and member.judge.grade(now_s) is not Grade.DOWN
            for member in self._tiers.get(tier, ())
        )

    def elsewhere(self, now_s: float, replica: str) -> bool:
        """Whether another replica of its tier is well."""
        return any(
            member.load.name != replica
            and not member.out
            and member.breaker.state is State.CLOSED
            and member.judge.grade(now_s) is Grade.UP
            for member in self._tiers[self.members[replica].tier]
        )

    def panics(self, now_s: float, tier: str) -> bool:
        """Whether too few of its replicas are well."""
        members = [member for member in self._tiers.get(tier, ()) if not member.out]
        well = sum(not m.breaker.blocks(now_s) and m.judge.grade(now_s) is not Grade.DOWN for m in members)
        return well < self._routing.panic_share * len(members) or well == 0

    def begin(self, now_s: float, replica: str, cost: float = 1.0) -> Ticket:
        """An attempt goes out."""
        member = self.members[replica]
        member.load.outstanding += cost
        return member.breaker.begin(now_s, at_once=True)

    def heard(self, now_s: float, replica: str, ticket: Ticket) -> Ticket:
        """It has begun to answer; the ticket for the rest."""
        member = self.members[replica]
        member.judge.heard(now_s)
        return ticket if member.breaker.state is _CLOSED else member.breaker.heard(now_s, ticket)

    def end(self, now_s: float, replica: str, ticket: Ticket, outcome: Outcome, cost: float = 1.0) -> bool:
        """An attempt is over; whether this has opened the replica's breaker."""
        member = self.members[replica]
        load = member.load
        load.outstanding = load.outstanding - cost if load.outstanding > cost else 0.0
        if outcome in FAULTS:
            member.judge.outcome(now_s, outcome)
        elif outcome is _OUTCOME_BUSY:
            self.busy(now_s, replica, _BUSY_S)
        return member.breaker.end(now_s, ticket, outcome)

    def busy(self, now_s: float, replica: str, for_s: float) -> None:
        """It asks to be left alone for so long."""
        member = self.members[replica]
        member.busy_until_s = max(member.busy_until_s, now_s + for_s)

    def others_free(self, now_s: float, replica: str) -> bool:
        """Whether another replica of its tier takes requests without being busy."""
        return any(
            member.load.name != replica
            and not member.out
            and member.busy_until_s <= now_s
            and not member.breaker.blocks(now_s)
            and member.judge.grade(now_s) is not Grade.DOWN
            for member in self._tiers[self.members[replica].tier]
        )

    def take_out(self, replica: str, reason: str) -> None:
        """It gets no further requests until it is readmitted; what it has begun it ends."""
        self.members[replica].out = reason

    def readmit(self, replica: str) -> None:
        """It may be asked again; its breaker closes."""
        member = self.members[replica]
        member.out = ""
        member.breaker.reset()

    def _rank(self, now_s: float, member: Member, tried: tuple[str, ...]) -> int:
        grade = member.judge.grade(now_s)
        if grade is Grade.DOWN:
            return _DOWN
        if member.load.name in tried:
            return _LAST if member.load.name == tried[-1] else _TRIED
        if now_s < member.busy_until_s:
            return _BUSY
        return _AT_BEST if grade is Grade.UP else _DOUBTFUL

    def _placed(self, question: Question, loads: list[Load], reason: str) -> Placed:
        domains = _NO_DOMAINS
        if question.tried:
            domains = frozenset(self.members[name].load.domain for name in question.tried) - {""}
        choice = self._routers[question.tier].choose(loads, question.session, domains)
        return Placed(replica=choice.load.name, reason=reason or choice.reason)

    def _at_worst(
        self, now_s: float, question: Question, members: Sequence[Member], probes: list[Load]
    ) -> Placed | Nowhere:
        """Every breaker is open: the longest open one may be asked after a second, one request at a time."""
        if probes:
            return self._placed(question, probes, "probe of its breaker")
        there = [member for member in members if not member.out]
        if not there:
            what = f"tier {question.tier!r}" if question.tier else "the service"
            return Nowhere(reason=f"no replica of {what} is in service", retry_after_s=_OUT_S)
        best = min(there, key=lambda member: (member.breaker.probing(now_s), member.breaker.opened_s))
        waited_s = now_s - best.breaker.opened_s
        if not best.breaker.probing(now_s) and waited_s >= PANIC_OPEN_S:
            return Placed(replica=best.load.name, reason="panic: every breaker is open")
        return Nowhere(reason="every replica has failed lately", retry_after_s=max(PANIC_OPEN_S - waited_s, 0.1))
