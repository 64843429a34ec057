"""Which of the replicas that may be asked is asked. Pure.

Without a session, the one with the least outstanding work for its capacity; among equals the one that has rested
longest. With a session, the one that the consistent hash gives, unless it has more than its bounded share. Replicas
in the failure domain of one that has just failed come last: what took one may have taken its neighbours. A standby
is asked only if no active replica may be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from closeranks.serve.policies.affinity import Ring
from closeranks.serve.policies.bounds import within


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[routing]``."""

    session_header: str = "x-session-id"
    session_cookie: str = ""
    session_prefix: bool = True  # a conversation without either is known by how it began
    balance: float = 1.25  # a session moves on when its replica has this many times the average load
    panic_share: float = 0.5  # if fewer replicas than this are well, those that are not are asked, too

    def __post_init__(self) -> None:
        within(self, 1, 1e6, "balance")
        within(self, 0, 1, "panic_share")


class Load(msgspec.Struct, kw_only=True):
    """One replica, as the choice sees it. ``outstanding`` is kept by the caller."""

    name: str
    capacity: float = 1.0
    domain: str = ""
    standby: bool = False
    outstanding: float = 0.0
    asked: int = 0  # when it was last chosen, counted in choices


class Choice(msgspec.Struct, frozen=True):
    """The replica, and why it."""

    load: Load
    reason: Literal["least outstanding work", "session", "session moved", "standby"]


class Router:
    """Chooses among ``loads``."""

    def __init__(self, settings: RoutingSettings, loads: Sequence[Load]) -> None:
        self._settings = settings
        self._ring = Ring({load.name: load.capacity for load in loads})
        self._standbys = any(load.standby for load in loads)
        self._choices = 0

    def choose(self, usable: Sequence[Load], session: str = "", failed_domains: frozenset[str] = frozenset()) -> Choice:
        """One of ``usable``, which must not be empty."""
        self._choices += 1
        reason: Literal["least outstanding work", "standby"] = "least outstanding work"
        candidates = usable
        if self._standbys:
            candidates = [load for load in usable if not load.standby] or usable
            reason = "standby" if candidates[0].standby else reason
        if failed_domains:
            candidates = [load for load in candidates if load.domain not in failed_domains] or candidates
        choice = None
        if session and len(candidates) > 1:
            choice = self._by_session(candidates, session)
        if choice is None:
            choice = Choice(min(candidates, key=_by_work) if len(candidates) > 1 else candidates[0], reason)
        choice.load.asked = self._choices
        return choice

    def _by_session(self, candidates: Sequence[Load], session: str) -> Choice | None:
        outstanding, capacity, by_name = 1.0, 0.0, {}
        for load in candidates:
            outstanding += load.outstanding
            capacity += load.capacity
            by_name[load.name] = load
        each = self._settings.balance * outstanding / capacity
        first = True
        for name in self._ring.order(session):
            candidate = by_name.get(name)
            if candidate is None:
                continue
            if candidate.outstanding < math.ceil(each * candidate.capacity):
                return Choice(candidate, "session" if first else "session moved")
            first = False
        return None


def _by_work(load: Load) -> tuple[float, int]:
    return load.outstanding / load.capacity, load.asked
