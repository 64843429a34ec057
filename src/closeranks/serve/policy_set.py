"""The policies of one gateway process together: what they start from, what checks tell them, what others see. Pure."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from closeranks.serve.life import Life
from closeranks.serve.policies.admission import Admission
from closeranks.serve.policies.avoidance import Dependencies
from closeranks.serve.policies.fleet import Fleet
from closeranks.serve.policies.health import Check, Finding
from closeranks.serve.policies.hedging import Hedging
from closeranks.serve.policies.ladder import Ladder, Moved, Signals
from closeranks.serve.policies.limiter import Limiter
from closeranks.serve.policies.redundancy import Quarantine
from closeranks.serve.policies.retry_budget import RetryBudget
from closeranks.serve.policies.router import Load
from closeranks.serve.policies.tenants import TenantSettings
from closeranks.serve.policies.window import Durations, Tally
from closeranks.serve.settings import Settings
from closeranks.serve.words import NEVER_S, Kind

SIGNALS_S: Final = 10.0  # what the ladder looks at
_P99: Final = 0.99
_STANDARD: Final = 3  # the class whose queue the ladder looks at


class Policies:
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
        self._lives: dict[int, Life] = {}
        self.has_ladder = len(self.ladder.levels) > 1  # else nobody looks at its signals, and none are taken
        self.looks_twice = self.has_ladder or settings.redundancy.share > 0  # at some of the whole answers
        self._latencies = Durations(SIGNALS_S)
        self._good, self._bad = Tally(SIGNALS_S), Tally(SIGNALS_S)

    def inherit(self, before: Policies) -> None:
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

    # --- the gateway's own requests ---------------------------------------------------------------------------------

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
