"""When heartbeats arrive that leave in equal intervals and are held up on their way; and how a detector judges them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from closeranks.detect.heartbeat import Bounds, beat, first_pulse, look

BEAT_S = 0.5
BOUNDS = Bounds(floor_s=3 * BEAT_S, ceiling_s=6 * BEAT_S)
Delay = Callable[[random.Random], float]

DELAYS: dict[str, Delay] = {
    "quiet network": lambda draw: draw.lognormvariate(-7.0, 0.5),  # about 1 ms
    "lognormal": lambda draw: draw.lognormvariate(-4.0, 1.2),  # median 18 ms, one of a thousand 0.75 s
    "Pareto": lambda draw: 0.002 * draw.paretovariate(1.5),  # without a variance: one of a thousand 0.2 s
    "collections": lambda draw: draw.uniform(0.2, 1.2) if draw.random() < 0.005 else draw.uniform(0.0, 0.01),
    "collections, long": lambda draw: draw.uniform(1.5, 2.2) if draw.random() < 0.002 else draw.uniform(0.0, 0.01),
}


class Quality(NamedTuple):
    """How good a detector is on a stretch of arrivals."""

    suspicions_per_hour: float  # all of them false
    detection_s: float  # mean, from the last beat that left to the suspicion, had the node ended at any moment
    worst_s: float


def arrivals(delay: Delay, beats: int, draw: random.Random) -> Iterator[float]:
    """Times of arrival, in order: a stream does not overtake itself."""
    last_s = 0.0
    for number in range(1, beats + 1):
        last_s = max(last_s, number * BEAT_S + delay(draw))
        yield last_s


def judged(delay: Delay, hours: float, seed: int) -> Quality:
    """Run the detector over so many hours of a node that never fails."""
    pulse = first_pulse("n1", BOUNDS, 0.0)
    suspicions, allowed = 0, []
    for now_s in arrivals(delay, int(hours * 3600 / BEAT_S), random.Random(seed)):
        if now_s > pulse.due_s:
            pulse, suspicion = look(pulse, pulse.due_s)
            suspicions += suspicion is not None
        pulse, _ = beat(pulse, now_s)
        allowed.append(pulse.due_s - now_s)
    # A node that ends has sent its last beat half an interval before, on average.
    return Quality(suspicions / hours, sum(allowed) / len(allowed) - BEAT_S / 2, max(allowed))
