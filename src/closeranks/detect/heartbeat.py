"""Heartbeat detector of nodes: how long one may be silent, learned from when its beats arrive.

The deadline is the mean interval plus a number of standard deviations, between a floor and a ceiling: no assumption
about their distribution is needed for "seldom" (Chebyshev). A node that is overdue is only *suspected*; the caller
looks for it on other ways and says so when they confirm it. A beat after all widens the deadline, for a while, so
that the same pause does not raise the same alarm again.

An observer that was late itself has seen no silence: it excuses the nodes for that time and learns nothing from it.

Source: T. D. Chandra, S. Toueg, "Unreliable Failure Detectors for Reliable Distributed Systems", JACM 43(2), 1996
(widening after false alarms); W. Chen, S. Toueg, M. K. Aguilera, "On the Quality of Service of Failure Detectors",
IEEE Trans. Computers 51(5), 2002 (deadlines from measured mean and variance).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from closeranks.events import DeadlineChanged

_TOLD_CHANGE = 0.25  # a deadline that moved by less is not told


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of what is learned; the first two follow from the interval of beats and the lease."""

    floor_s: float  # no deadline is shorter
    ceiling_s: float  # none is longer, and before anything is learned it is this
    deviations: float = 8.0  # beyond the mean: at most 1 of 64 intervals, of usual shapes 1 of millions
    memory_beats: int = 64  # older intervals count for ever less
    least_beats: int = 8  # before so many nothing is learned
    wider: float = 1.5  # times the silence that was a false alarm
    forgiven_beats: int = 1024  # until that has halved

    def __post_init__(self) -> None:
        if not 0 < self.floor_s <= self.ceiling_s:
            raise ValueError(
                f"expected 0 < floor <= ceiling, got floor {self.floor_s:g} s and ceiling {self.ceiling_s:g} s"
            )


class Standing(StrEnum):
    """What is thought of a node."""

    HEARD = "heard"
    SUSPECT = "suspect"  # overdue, once told
    CONFIRMED = "confirmed"  # gone, say others too


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """The beats of one node."""

    node: str
    bounds: Bounds
    heard_s: float  # when its last beat arrived, on the observer's monotonic clock
    due_s: float  # look again then, not before
    allowed_s: float  # silence
    told_s: float  # the deadline that was last told
    standing: Standing = Standing.HEARD
    beats: int = 0  # intervals learned from
    mean_s: float = 0.0
    variance_s2: float = 0.0
    widened_s: float = 0.0  # by false alarms
    excused_s: float = 0.0  # of the present silence: the observer's own


class Suspicion(NamedTuple):
    """A node is overdue. Told once for each silence."""

    node: str
    silent_s: float  # the observer's own lateness taken off
    allowed_s: float
    reason: str


class Survey(NamedTuple):
    """What a look at all nodes gave."""

    changed: Mapping[str, Pulse]
    suspicions: tuple[Suspicion, ...]
    next_s: float  # look again then; infinite when nobody can become overdue


def first_pulse(node: str, bounds: Bounds, now_s: float) -> Pulse:
    """A node that has just been heard of."""
    ceiling_s = bounds.ceiling_s
    return Pulse(
        node=node, bounds=bounds, heard_s=now_s, due_s=now_s + ceiling_s, allowed_s=ceiling_s, told_s=ceiling_s
    )


def beat(pulse: Pulse, now_s: float, late_s: float = 0.0) -> tuple[Pulse, DeadlineChanged | None]:
    """A beat arrived. ``late_s``: so late is the observer, by its own timers; then the interval teaches nothing."""
    if late_s > 0 or pulse.excused_s > 0:
        due_s = now_s + pulse.allowed_s
        return replace(pulse, heard_s=now_s, due_s=due_s, standing=Standing.HEARD, excused_s=0.0), None
    bounds = pulse.bounds
    interval_s = now_s - pulse.heard_s
    beats = pulse.beats + 1
    # Sample moments at first, then exponentially weighted ones.
    weight = 1.0 / min(beats, bounds.memory_beats)
    off_s = interval_s - pulse.mean_s
    mean_s = pulse.mean_s + weight * off_s
    variance_s2 = (1.0 - weight) * (pulse.variance_s2 + weight * off_s * off_s)
    widened_s = pulse.widened_s * 0.5 ** (1.0 / bounds.forgiven_beats)
    false_alarm = pulse.standing is not Standing.HEARD
    if false_alarm or widened_s > 0:  # once it was too narrow, near misses keep it wide
        widened_s = max(widened_s, bounds.wider * interval_s)
    allowed_s = bounds.ceiling_s
    if beats >= bounds.least_beats:
        learned_s = max(mean_s + bounds.deviations * math.sqrt(variance_s2), widened_s, bounds.floor_s)
        allowed_s = min(learned_s, bounds.ceiling_s)
    told = abs(allowed_s - pulse.told_s) > _TOLD_CHANGE * pulse.told_s
    beaten = Pulse(
        node=pulse.node,
        bounds=bounds,
        heard_s=now_s,
        due_s=now_s + allowed_s,
        allowed_s=allowed_s,
        told_s=allowed_s if told else pulse.told_s,
        beats=beats,
        mean_s=mean_s,
        variance_s2=variance_s2,
        widened_s=widened_s,
    )
    return beaten, _change(beaten, interval_s if false_alarm else 0.0) if told else None


def look(pulse: Pulse, now_s: float, late_s: float = 0.0) -> tuple[Pulse, Suspicion | None]:
    """Whether the node is overdue. ``late_s``: the observer looks so much later than it wanted to."""
    if pulse.standing is not Standing.HEARD:
        return pulse, None
    if late_s > 0:
        pulse = replace(pulse, excused_s=pulse.excused_s + late_s, due_s=pulse.due_s + late_s)
    if now_s < pulse.due_s:
        return pulse, None
    silent_s = now_s - pulse.heard_s - pulse.excused_s
    reason = f"no beat of {pulse.node} for {silent_s:.2f} s, {pulse.allowed_s:.2f} s are allowed: {_learned(pulse)}"
    return _waiting(pulse, Standing.SUSPECT), Suspicion(pulse.node, silent_s, pulse.allowed_s, reason)


def look_at_all(pulses: Mapping[str, Pulse], now_s: float, late_s: float = 0.0) -> Survey:
    """``look`` at every node."""
    changed: dict[str, Pulse] = {}
    suspicions: list[Suspicion] = []
    next_s = math.inf
    for node, pulse in pulses.items():
        if late_s > 0 or now_s >= pulse.due_s:
            seen, suspicion = look(pulse, now_s, late_s)
            if seen is not pulse:
                changed[node] = seen
            if suspicion is not None:
                suspicions.append(suspicion)
            next_s = min(next_s, seen.due_s)
        else:
            next_s = min(next_s, pulse.due_s)
    return Survey(changed, tuple(suspicions), next_s)


def confirmed(pulse: Pulse) -> Pulse:
    """Others say the same: it is gone, as far as can be known. A beat after all brings it back."""
    return _waiting(pulse, Standing.CONFIRMED)


def _waiting(pulse: Pulse, standing: Standing) -> Pulse:
    return replace(pulse, standing=standing, due_s=math.inf)


def _learned(pulse: Pulse) -> str:
    bounds = pulse.bounds
    if pulse.beats < bounds.least_beats:
        return f"too little is learned from {pulse.beats} beats"
    deviation_s = math.sqrt(pulse.variance_s2)
    text = f"beats come every {pulse.mean_s:.2f} s, give or take {deviation_s:.3f} s"
    if pulse.allowed_s == bounds.floor_s:
        return f"{text}, and no deadline is shorter"
    if pulse.allowed_s == bounds.ceiling_s:
        return f"{text}, and no deadline is longer"
    return f"{text}, and one came late" if pulse.allowed_s == pulse.widened_s else text


def _change(pulse: Pulse, false_alarm_s: float) -> DeadlineChanged:
    why = f"a beat came after {false_alarm_s:.2f} s, when it was suspected already; " if false_alarm_s else ""
    return DeadlineChanged(
        phase=f"heartbeat of {pulse.node}", allowed_s=pulse.allowed_s, reason=f"{why}{_learned(pulse)}"
    )
