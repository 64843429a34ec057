"""Which records of a journal say that something is wrong, whom they name, and in what words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from closeranks.events import AnyEvent, CheckpointVerified, ErrorSeen, IncidentOpened, IncidentWidened, Record

INCIDENT: Final = "incident"  # opened upon what a detector saw


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """One record that says that something is wrong."""

    mono_s: float
    detector: str
    text: str
    seats: tuple[int, ...] = ()
    node: str = ""  # that was kept out
    of_incident: bool = False  # an incident has a diagnosis of its own; a warning is all that is said


class Warns(NamedTuple):
    """How a kind of record that opens no incident is read."""

    detector: str
    words: tuple[str, ...]  # fields that say what is wrong
    names_seats: bool = False
    says: str = ""  # before these, where they are numbers


# By the kind that stands in the journal: whatever a detector writes of its own accord.
WARNINGS: Final[Mapping[str, Warns]] = {
    "SaveFailed": Warns("save", ("problem",)),
    "TierMissed": Warns("save", ("tier", "problem")),
    "StepHeld": Warns("numerics", ("findings",)),
    "StepReplayed": Warns("replay", ("verdict", "reason"), names_seats=True),
    "StepSkipped": Warns("numerics", ("reason",)),
    "CurveSeen": Warns("curve", ("signature", "reason")),
    "CorruptionSuspected": Warns("corruption", ("source", "detail")),
    "CanaryFailed": Warns("canary", ("reason",)),
    "StragglerNamed": Warns("straggler", ("cause", "reason"), names_seats=True),
    "NetworkSlow": Warns("network", ("apart_s", "usual_s"), says="longer in collectives"),
    "NodeUnwell": Warns("telemetry", ("sign", "detail")),
    "NodeQuarantined": Warns("quarantine", ("reason",)),
}


def signs_in(records: Iterable[Record]) -> tuple[Sign, ...]:
    """The signs of trouble, in their order."""
    found = (_sign(record.event, record.mono_s) for record in records)
    return tuple(sign for sign in found if sign is not None)


def _sign(event: AnyEvent, mono_s: float) -> Sign | None:
    match event:
        case ErrorSeen():
            seats = () if event.seat is None else (event.seat,)
            known = event.incident is not None
            return Sign(mono_s=mono_s, detector=event.detector, text=event.detail, seats=seats, of_incident=known)
        case IncidentOpened() | IncidentWidened():
            return Sign(mono_s=mono_s, detector=INCIDENT, text=event.summary, seats=event.seats, of_incident=True)
        case CheckpointVerified():
            return None if event.held else Sign(mono_s=mono_s, detector="verification", text=event.detail)
        case _:
            return _warning(event, mono_s)


def _warning(event: AnyEvent, mono_s: float) -> Sign | None:
    warns = WARNINGS.get(type(event).__name__)
    if warns is None:
        return None
    said = msgspec.structs.asdict(event)
    return Sign(
        mono_s=mono_s,
        detector=warns.detector,
        text=": ".join([warns.says] * bool(warns.says) + [_spelled(said[field]) for field in warns.words]),
        seats=tuple(said["seats"]) if warns.names_seats else (),
        node=said["node"] if warns.detector == "quarantine" else "",
    )


def _spelled(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)
