"""Who may begin, who waits, who is turned away: early, cheaply, and with a time to come back. Pure.

Interactive and standard requests come before batch; among those, premium before free; among those, interactive before
standard. Each class has a bounded queue of its own, so that a flood of one cannot push another out. Within a class
tenants take turns by deficit round robin: what one of them has queued does not delay the others.

A request that cannot be served in time is turned away when it comes, not when its time is up: the wait is predicted
from what is ahead of it and the pace at which requests have lately begun.

Source: Shreedhar & Varghese, "Efficient Fair Queuing Using Deficit Round Robin", 1996; the classes in the manner of
Netflix' prioritized load shedding.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

import msgspec

from closeranks.serve.policies.bounds import positive, within
from closeranks.serve.policies.tenants import Quota, TenantSettings, seconds_up
from closeranks.serve.policies.window import Tally
from closeranks.serve.words import NEVER_S, Admitted, Ask, Priority, Shed, Waits

CLASSES: Final = 6
CEILINGS: Final = (1.0, 1.0, 1.0, 1.0, 0.8, 0.8)  # of the limit, by class: batch never takes the last fifth of it
_RATE_WINDOW_S: Final = 2.0
_RATE_LEAST_S: Final = 0.5
_TOO_MANY, _UNAVAILABLE = 429, 503
_ADMITTED: Final = Admitted()
_NOBODY: Final[tuple[Ask, ...]] = ()


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[admission]``."""

    queue: int = 256  # requests that may wait, of each class
    wait_s: float = 5.0  # at most
    tenant_header: str = "x-tenant"
    priority_header: str = "x-priority"

    def __post_init__(self) -> None:
        positive(self, "wait_s")
        within(self, 0, 1e6, "queue")


_BATCH: Final = Priority.BATCH  # on Python 3.11 a member of an Enum is found by calling a function
_INTERACTIVE: Final = Priority.INTERACTIVE


def rank(ask: Ask) -> int:
    """The class of a request: 0 is served first."""
    if ask.priority is _BATCH:
        return 4 if ask.premium else 5
    return (0 if ask.premium else 2) + (0 if ask.priority is _INTERACTIVE else 1)


class _Entry(msgspec.Struct):
    ask: Ask
    until_s: float
    gone: bool = False


class _Lane(msgspec.Struct):
    """One tenant's queue in one class."""

    entries: deque[_Entry] = msgspec.field(default_factory=deque)
    deficit: float = 0.0


class _Class:
    """One class: lanes that take turns."""

    def __init__(self) -> None:
        self.lanes: OrderedDict[str, _Lane] = OrderedDict()
        self.size = 0
        self.cost = 0.0

    def push(self, entry: _Entry) -> None:
        self.lanes.setdefault(entry.ask.tenant, _Lane()).entries.append(entry)
        self.size += 1
        self.cost += entry.ask.cost

    def left(self, entry: _Entry) -> None:
        """The entry will not be served; it is skipped when its turn comes."""
        entry.gone = True
        self.size -= 1
        self.cost -= entry.ask.cost

    def pop(self, now_s: float, weights: dict[str, Quota]) -> _Entry | None:
        """Whose turn it is; None if nobody waits."""
        while self.lanes:
            tenant, lane = next(iter(self.lanes.items()))
            while lane.entries and (lane.entries[0].gone or lane.entries[0].until_s <= now_s):
                entry = lane.entries.popleft()
                if not entry.gone:
                    self.left(entry)
            if not lane.entries:
                del self.lanes[tenant]
                continue
            if lane.deficit < lane.entries[0].ask.cost:
                quota = weights.get(tenant)
                lane.deficit += max(0.01, quota.settings.weight if quota else 1.0)
                self.lanes.move_to_end(tenant)
                continue
            entry = lane.entries.popleft()
            lane.deficit -= entry.ask.cost
            self.left(entry)
            return entry
        return None


class Admission:
    """The door of one process. ``limit`` may be changed at any time."""

    def __init__(self, settings: AdmissionSettings, tenants: tuple[TenantSettings, ...], limit: float) -> None:
        self._settings = settings
        self.limit = limit
        self.in_flight = 0.0
        self._quotas = {tenant.name: Quota(tenant) for tenant in tenants}
        self._classes = [_Class() for _ in range(CLASSES)]
        self._waiting: dict[int, _Entry] = {}
        self._drained = Tally(_RATE_WINDOW_S)
        self._queued_since_s = NEVER_S
        self._shed = Tally(_RATE_WINDOW_S)

    def admit(self, now_s: float, ask: Ask) -> Admitted | Waits | Shed:
        """Whether the request may begin."""
        if ask.deadline_s <= now_s:
            return Shed(status=504, retry_after_s=1.0, reason="its deadline had passed when it came")
        quota = self._quotas.get(ask.tenant)
        if quota is not None and (wait_s := quota.take(now_s, ask.cost)) > 0:
            reason = f"tenant {ask.tenant} has used its quota"
            return self._turn_away(now_s, Shed(status=_TOO_MANY, retry_after_s=seconds_up(wait_s), reason=reason))
        number = rank(ask)
        if self._has_room(number, ask.cost) and not (self._waiting and self._waits_before(number)):
            self.in_flight += ask.cost
            return _ADMITTED
        shed = self._objection(now_s, ask, number)
        if shed is not None:
            if quota is not None:
                quota.give_back(ask.cost)
            return self._turn_away(now_s, shed)
        entry = _Entry(ask, min(ask.deadline_s, now_s + self._settings.wait_s))
        if not self._waiting:
            self._queued_since_s = now_s
        self._waiting[ask.number] = entry
        self._classes[number].push(entry)
        return Waits(until_s=entry.until_s)

    def done(self, now_s: float, ask: Ask, *, begun: bool) -> Sequence[Ask]:
        """A request is over, begun or not; those that may begin now."""
        if self._quotas and (quota := self._quotas.get(ask.tenant)) is not None:
            quota.give_back(ask.cost)
        if begun:
            self.in_flight = self.in_flight - ask.cost if self.in_flight > ask.cost else 0.0
        if not self._waiting:
            return _NOBODY
        entry = self._waiting.pop(ask.number, None)
        if entry is not None and not entry.gone:
            self._classes[rank(ask)].left(entry)
        return self.next(now_s)

    def next(self, now_s: float) -> list[Ask]:
        """The requests that may begin now; they have begun."""
        begun: list[Ask] = []
        if not self._waiting:
            return begun
        for number, one in enumerate(self._classes):
            while one.size and self._has_room(number, 1.0):
                entry = one.pop(now_s, self._quotas)
                if entry is None:
                    break
                self._waiting.pop(entry.ask.number, None)
                self.in_flight += entry.ask.cost
                self._drained.add(now_s, entry.ask.cost)
                begun.append(entry.ask)
        return begun

    def waiting(self) -> tuple[int, ...]:
        """How many requests wait, by class."""
        return tuple(one.size for one in self._classes)

    def wait_s(self, now_s: float, number: int) -> float:
        """How long a request of this class would wait: what is ahead of it, at the pace at which the queue moves.

        Never, as long as the queue is too young to have a pace.
        """
        ahead = sum(self._classes[before].cost for before in range(number + 1))
        if not ahead:
            return 0.0
        lasted_s = min(_RATE_WINDOW_S, now_s - self._queued_since_s)
        pace = self._drained.total(now_s) / lasted_s if lasted_s >= _RATE_LEAST_S else 0.0
        return ahead / pace if pace > 0 else NEVER_S

    def shed_per_s(self, now_s: float) -> float:
        """Requests that were turned away lately."""
        return self._shed.total(now_s) / _RATE_WINDOW_S

    def _has_room(self, number: int, cost: float) -> bool:
        in_flight = self.in_flight
        return in_flight + cost <= CEILINGS[number] * self.limit or in_flight + cost <= 1 or in_flight <= 0

    def _waits_before(self, number: int) -> bool:
        return any(self._classes[before].size for before in range(number + 1))

    def _objection(self, now_s: float, ask: Ask, number: int) -> Shed | None:
        one = self._classes[number]
        wait_s = self.wait_s(now_s, number)
        if one.size >= self._settings.queue:
            back_s = seconds_up(min(wait_s, 60.0))
            return Shed(status=_UNAVAILABLE, retry_after_s=back_s, reason=f"{one.size} requests wait already")
        patience_s = min(self._settings.wait_s, ask.deadline_s - now_s)
        # Without a pace nothing can be predicted: the first ones in the queue find out.
        if wait_s != NEVER_S and wait_s > patience_s:
            reason = f"it would wait {wait_s:.1f} s for its turn, longer than {patience_s:.1f} s"
            return Shed(status=_UNAVAILABLE, retry_after_s=seconds_up(min(wait_s, 60.0)), reason=reason)
        return None

    def _turn_away(self, now_s: float, shed: Shed) -> Shed:
        self._shed.add(now_s)
        return shed
