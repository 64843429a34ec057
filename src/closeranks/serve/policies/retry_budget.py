"""One budget for all work that is done more than once: retries, hedges, resumes, probes and doubles. Pure.

Retries multiply load just when there is too much of it. So together they may be no more than a share of the traffic
of the last seconds, plus a floor without which a quiet service could never retry. An attempt counts from the moment
it is granted, in its pause already, until it has ended *and* left the window: a thousand requests that fail at the
same instant find a budget that the first few hundred of them have emptied.

A resume replaces work that died with its replica, one for one, so it may use the budget beyond the share for retries;
what it uses is gone for the others, too.

Source: Finagle's RetryBudget (share 20 %, 10 s, 10 per second); Envoy's retry budget for what is still in flight;
"Exponential Backoff And Jitter", AWS Architecture Blog 2015 (full jitter).
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Final

import msgspec

from closeranks.serve.policies.bounds import positive, within
from closeranks.serve.policies.window import Tally
from closeranks.serve.words import Kind

_DIGITS: Final = 9


class BudgetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[budget]``."""

    share: float = 0.2  # of recent traffic
    resume_share: float = 1.0  # likewise, for answers that are continued after a cut
    floor_per_s: float = 10.0  # always allowed
    window_s: float = 10.0  # what is recent
    tries: int = 4  # attempts at one request, the first one included
    backoff_s: float = 0.025  # the longest pause before the second attempt; it doubles
    backoff_max_s: float = 2.0
    retry_after_max_s: float = 30.0  # a replica that asks for more is not waited for

    def __post_init__(self) -> None:
        within(self, 0, 1, "share")
        within(self, 0, 4, "resume_share")
        within(self, 0, 1e6, "floor_per_s", "backoff_s", "backoff_max_s", "retry_after_max_s")
        positive(self, "window_s", "tries")


class Permit(msgspec.Struct):
    """One granted attempt. Give it back when the attempt has ended."""

    granted_s: float
    kind: Kind
    cost: float
    over: bool = False
    recent: bool = True


class RetryBudget:
    """The budget of one process; ``part`` of the floor is its own if several share the replicas."""

    def __init__(self, settings: BudgetSettings, *, part: float = 1.0) -> None:
        self._settings = settings
        self._floor = settings.floor_per_s * settings.window_s * part
        self._traffic = Tally(settings.window_s)
        self._in_flight = 0.0
        self._recent: deque[Permit] = deque()
        self._spent = 0.0  # by what is recent, and by what is older and not over
        self.refused = 0

    def began(self, now_s: float, cost: float = 1.0) -> None:
        """A request's first attempt."""
        self._traffic.add(now_s, cost)
        self._in_flight += cost

    def ended(self, cost: float = 1.0) -> None:
        """A request is over."""
        self._in_flight = self._in_flight - cost if self._in_flight > cost else 0.0

    def take(self, now_s: float, kind: Kind, cost: float = 1.0, part: float = 1.0) -> Permit | None:
        """One more attempt, if the budget has room for it; it counts from now on.

        Whoever may use only a ``part`` of the budget leaves the rest of it to others.
        """
        if self.spent(now_s) + cost > part * self.allowed(now_s, kind):
            self.refused += 1
            return None
        permit = Permit(granted_s=now_s, kind=kind, cost=cost)
        self._recent.append(permit)
        self._spent += cost
        return permit

    def give_back(self, permit: Permit) -> None:
        """The attempt has ended, or was never made. It stays counted as long as it is recent."""
        if not permit.over and not permit.recent:
            self._spent -= permit.cost
        permit.over = True

    def allowed(self, now_s: float, kind: Kind) -> float:
        """What all repeated attempts together may cost at the moment, seen from one of this kind."""
        share = self._settings.resume_share if kind is Kind.RESUME else self._settings.share
        # Requests of minutes are traffic as long as they last, even if few have begun in the last seconds.
        return self._floor + share * max(self._traffic.total(now_s), self._in_flight)

    def spent(self, now_s: float) -> float:
        """What is recent or in flight."""
        before_s = now_s - self._settings.window_s
        while self._recent and self._recent[0].granted_s <= before_s:
            permit = self._recent.popleft()
            permit.recent = False
            if permit.over:
                self._spent -= permit.cost
        return self._spent

    def used(self, now_s: float) -> float:
        """The share of the budget for retries that is in use; resumes may take it beyond 1."""
        allowed = self.allowed(now_s, Kind.RETRY)
        return self.spent(now_s) / allowed if allowed else 0.0


def backoff_s(settings: BudgetSettings, random: Random, tries: int) -> float:
    """The pause after ``tries`` attempts: drawn from nothing up to a bound that doubles."""
    bound_s = min(settings.backoff_max_s, settings.backoff_s * 2.0 ** min(tries - 1, 32))
    return random.uniform(0.0, bound_s)


def retry_after_s(value: bytes | None) -> float | None:
    """The seconds that a ``Retry-After`` asks for; None without one, or with a date.

    A date would need the calendars of both sides to agree; no model server sends one.
    """
    if value is None or not value.strip().isdigit():
        return None
    return float(value.strip()[:_DIGITS])
