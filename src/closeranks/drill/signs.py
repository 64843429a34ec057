"""Which records of a journal say that something is wrong, whom they name, and in what words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from closeranks.events import (
    AnyEvent,
    CheckpointVerified,
    ErrorSeen,
    IncidentOpened,
    IncidentWidened,
    Record,
    SaveFailed,
    TierMissed,
)


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """One record that says that something is wrong."""

    mono_s: float
    detector: str
    text: str
    seats: tuple[int, ...] = ()
    node: str = ""  # that was kept out
    of_incident: bool = False  # an incident has a diagnosis of its own; a warning is all that is said


def signs_in(records: Iterable[Record]) -> tuple[Sign, ...]:
    """The signs of trouble, in their order."""
    found = (_sign(record.event, record.mono_s) for record in records)
    return tuple(sign for sign in found if sign is not None)


def _sign(event: AnyEvent, mono_s: float) -> Sign | None:
    match event:
        case ErrorSeen():
            seats = () if event.seat is None else (event.seat,)
            of_incident = event.incident is not None
            return Sign(mono_s=mono_s, detector=event.detector, text=event.detail, seats=seats, of_incident=of_incident)
        case IncidentOpened() | IncidentWidened():
            return Sign(mono_s=mono_s, detector="incident", text=event.summary, seats=event.seats, of_incident=True)
        case SaveFailed():
            return Sign(mono_s=mono_s, detector="save", text=event.problem)
        case TierMissed():
            return Sign(mono_s=mono_s, detector="save", text=f"{event.tier}: {event.problem}")
        case CheckpointVerified(held=False):
            return Sign(mono_s=mono_s, detector="verification", text=event.detail)
        case _:
            return None
