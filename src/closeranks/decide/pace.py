"""The pace of training: step time before an incident, and when it is back."""

from __future__ import annotations

import statistics

import msgspec

from closeranks.events import NormalAgain

WINDOW_STEPS = 50
STREAK_STEPS = 3
_LEAST_STEPS = 5  # before that there is no pace to come back to
_SLACK = 0.25


class Settling(msgspec.Struct, frozen=True, kw_only=True):
    """An incident is closed, the pace is not yet what it was."""

    incident: int
    opened_s: float
    streak: tuple[float, ...] = ()
    streak_began_s: float = 0.0
    seen: int = 0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The newest step times of undisturbed training, in seconds."""

    steps_s: tuple[float, ...] = ()
    settling: Settling | None = None


def band(steps_s: tuple[float, ...]) -> tuple[float, float]:
    """Median plus or minus the larger of three median absolute deviations and a quarter of the median."""
    middle_s = statistics.median(steps_s)
    deviation_s = statistics.median(abs(s - middle_s) for s in steps_s)
    half_s = max(3 * deviation_s, _SLACK * middle_s)
    return max(0.0, middle_s - half_s), middle_s + half_s


def disturbed(pace: Pace) -> Pace:
    """An incident opened: its steps tell nothing about the normal pace."""
    return msgspec.structs.replace(pace, settling=None)


def recovered(pace: Pace, incident: int, opened_s: float) -> Pace:
    """An incident closed: watch for the old pace, if it was known."""
    if len(pace.steps_s) < _LEAST_STEPS:
        return pace
    return msgspec.structs.replace(pace, settling=Settling(incident=incident, opened_s=opened_s))


def stepped(pace: Pace, duration_s: float, now_s: float) -> tuple[Pace, NormalAgain | None]:
    """A step was closed outside of incidents; the event, when the pace is normal again with it.

    Only slowness counts: a step faster than the band is no disturbance.
    """
    settling = pace.settling
    if settling is None:
        return Pace(steps_s=(*pace.steps_s, duration_s)[-WINDOW_STEPS:]), None
    low_s, high_s = band(pace.steps_s)
    if duration_s > high_s:
        settling = msgspec.structs.replace(settling, streak=(), seen=settling.seen + 1)
    else:
        began_s = settling.streak_began_s if settling.streak else now_s
        streak = (*settling.streak, duration_s)
        settling = msgspec.structs.replace(settling, streak=streak, streak_began_s=began_s, seen=settling.seen + 1)
    if len(settling.streak) == STREAK_STEPS:
        event = NormalAgain(
            incident=settling.incident,
            after_s=settling.streak_began_s - settling.opened_s,
            step_s=statistics.median(settling.streak),
            band_s=(low_s, high_s),
        )
        return Pace(steps_s=(*pace.steps_s, *settling.streak)[-WINDOW_STEPS:]), event
    if settling.seen >= WINDOW_STEPS:  # the job has a new pace: learn it
        return Pace(steps_s=(duration_s,)), None
    return msgspec.structs.replace(pace, settling=settling), None
