"""Trends that lead somewhere: whether values move in one direction for certain, and when they will be at a bound."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import msgspec

_CERTAIN_Z = 3.1  # one in a thousand, of a series without a trend


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing says that the bound will be reached: too few values, no certain direction, or the other one."""

    reason: str


class Reaches(msgspec.Struct, frozen=True, kw_only=True):
    """The bound is reached in so many seconds, if it goes on like this. 0: it is reached already."""

    in_s: float
    per_s: float  # slope


def mann_kendall(values: Sequence[float]) -> float:
    """Return z of the trend test: how many more pairs rise than fall, in standard deviations of a series without trend.

    Source: Mann 1945; Kendall 1975, with the variance for ties.
    """
    count = len(values)
    rises = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values())
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    if rises == 0 or variance <= 0:
        return 0.0
    return (rises - math.copysign(1, rises)) / math.sqrt(variance)


def theil_sen(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and value at the last point of the line through (time, value): a third of wild points change little.

    Source: Theil 1950; Sen 1968: the median of the slopes of all pairs.
    """
    slopes = [(v2 - v1) / (t2 - t1) for (t1, v1), (t2, v2) in combinations(points, 2) if t2 > t1]
    slope = statistics.median(slopes) if slopes else 0.0
    last_s = points[-1][0]
    return slope, statistics.median(value + slope * (last_s - at_s) for at_s, value in points)


def towards(points: Sequence[tuple[float, float]], bound: float, least: int) -> Reaches | Steady:
    """When the values will be at the bound, which they approach from the side they are on. ``points``: by time."""
    if not points:
        return Steady(reason="there are no values")
    first = points[0][1]
    sign = 1.0 if bound >= first else -1.0
    if sign * (points[-1][1] - bound) >= 0:
        return Reaches(in_s=0.0, per_s=0.0)
    if len(points) < least:
        return Steady(reason=f"{len(points)} values of {least}")
    z = sign * mann_kendall([value for _, value in points])
    if z < _CERTAIN_Z:
        return Steady(reason=f"no certain direction (z = {z:.1f})")
    slope, now = theil_sen(points)
    if sign * slope <= 0:
        return Steady(reason="most pairs of values do not move")
    return Reaches(in_s=max(0.0, (bound - now) / slope), per_s=slope)
