"""How often something may go wrong before the run gives up, in the manner of OTP's restart intensity.

Budgets belong to the run and are kept by seat and cause, never by process or incarnation: a successor that takes
the seat, or a group that starts again, finds them as they were left.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_NOT_ALLOWED = "no cold restart is allowed (--max-restarts 0)"


class Intensity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most ``most`` times within any ``period_s`` seconds."""

    most: int
    period_s: float


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run may spend."""

    start_restarts: int = 1  # restarts of the group in a row without a step between them
    cold_restarts: int = 3  # restarts of the group from nothing, in the whole run
    same_cause: Intensity = Intensity(most=5, period_s=600.0)  # of one cause on one seat
    incidents: Intensity = Intensity(most=100, period_s=3600.0)  # of any cause on any seat
    roll_backs: int = 2  # because training was not what it had been after a recovery, in the whole run
    spare_starts: Intensity = Intensity(most=10, period_s=600.0)  # refills after use or death, per wanted spare


class Within(msgspec.Struct, frozen=True, kw_only=True):
    """The expense is in the budget and was booked."""


class Exceeded(msgspec.Struct, frozen=True, kw_only=True):
    """The budget is used up; nothing was booked."""

    reason: str


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent so far."""

    limits: Limits
    starts: int = 0
    colds: int = 0
    roll_backs: int = 0
    incidents: tuple[float, ...] = ()
    spares: tuple[float, ...] = ()
    causes: Mapping[tuple[str, int | str], tuple[float, ...]] = {}  # by cause and place


def spend(times_s: tuple[float, ...], limit: Intensity, now_s: float) -> tuple[tuple[float, ...], bool]:
    """Book one more time at ``now_s`` if the limit allows it: the times that still count, and whether it did.

    Source: Erlang/OTP, ``supervisor:add_restart/3``.
    """
    recent = tuple(t for t in times_s if now_s - t < limit.period_s)
    if len(recent) >= limit.most:
        return recent, False
    return (*recent, now_s), True


def charge_incident(ledger: Ledger, now_s: float) -> tuple[Ledger, Within | Exceeded]:
    """A new incident, of whatever cause."""
    limit = ledger.limits.incidents
    times, fits = spend(ledger.incidents, limit, now_s)
    if not fits:
        return ledger, Exceeded(reason=f"more than {limit.most} incidents within {limit.period_s:g} s")
    return msgspec.structs.replace(ledger, incidents=times), Within()


def charge_cause(ledger: Ledger, cause: str, place: int | str, now_s: float) -> tuple[Ledger, Within | Exceeded]:
    """One loss of this cause at this place: a seat, or the name of a node or domain."""
    limit = ledger.limits.same_cause
    times, fits = spend(ledger.causes.get((cause, place), ()), limit, now_s)
    if not fits:
        where = f"seat {place}" if isinstance(place, int) else place
        reason = f"{where}: {cause!r} more than {limit.most} times within {limit.period_s:g} s"
        return ledger, Exceeded(reason=reason)
    return msgspec.structs.replace(ledger, causes={**ledger.causes, (cause, place): times}), Within()


def charge_start(ledger: Ledger) -> tuple[Ledger, Within | Exceeded]:
    """A restart of a group that had not closed a step."""
    most = ledger.limits.start_restarts
    if most == 0:
        return ledger, Exceeded(reason=_NOT_ALLOWED)
    if ledger.starts >= most:
        times = "once" if most == 1 else f"{most} times"
        return ledger, Exceeded(reason=f"the group was already restarted {times} without closing a step")
    return msgspec.structs.replace(ledger, starts=ledger.starts + 1), Within()


def charge_cold(ledger: Ledger) -> tuple[Ledger, Within | Exceeded]:
    """A restart of the group from nothing."""
    most = ledger.limits.cold_restarts
    if most == 0:
        return ledger, Exceeded(reason=_NOT_ALLOWED)
    if ledger.colds >= most:
        return ledger, Exceeded(reason=f"all {most} cold restarts are used up (--max-restarts)")
    return msgspec.structs.replace(ledger, colds=ledger.colds + 1), Within()


def charge_roll_back(ledger: Ledger) -> tuple[Ledger, Within | Exceeded]:
    """A return to an older state, because the newer one did not work out."""
    most = ledger.limits.roll_backs
    if ledger.roll_backs >= most:
        return ledger, Exceeded(reason=f"all {most} roll backs for that reason are used up")
    return msgspec.structs.replace(ledger, roll_backs=ledger.roll_backs + 1), Within()


def charge_spare(ledger: Ledger, wanted: int, now_s: float) -> tuple[Ledger, Within | Exceeded]:
    """A replacement of one of ``wanted`` spares."""
    limit = ledger.limits.spare_starts
    scaled = Intensity(most=limit.most * wanted, period_s=limit.period_s)
    times, fits = spend(ledger.spares, scaled, now_s)
    if not fits:
        return ledger, Exceeded(reason=f"more than {scaled.most} spares started within {scaled.period_s:g} s")
    return msgspec.structs.replace(ledger, spares=times), Within()


def stepped(ledger: Ledger) -> Ledger:
    """A step was closed: start-up is over, its budget is whole again."""
    return ledger if ledger.starts == 0 else msgspec.structs.replace(ledger, starts=0)
