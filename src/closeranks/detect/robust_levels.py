"""Middle and spread of numbers of which some are wild: the middle half decides."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

TRIMMED = 0.2  # of each end
_FEW = 64  # of so many or more, one changes neither the middle nor the spread to speak of
_NORMAL = 1.4826  # makes the median absolute deviation of normal values their standard deviation


class Others(NamedTuple):
    """All values but one."""

    middle: float
    spread: float  # as a standard deviation


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the highest and the lowest fifth: one wild value in five changes nothing.

    Source: Tukey and McLaughlin (1963); nearly as precise as the mean for normal values.
    """
    ordered = sorted(values)
    cut = int(TRIMMED * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    return math.fsum(kept) / len(kept)  # what statistics.fmean does, in half of its time


def leave_one_out(values: Mapping[int, float]) -> dict[int, Others]:
    """For each value the median of the others, and their spread around it; of two values at least.

    Without the value itself, so that one of two or three is not hidden by what it adds to the spread.
    """
    ordered = sorted(values.values())
    if len(ordered) >= _FEW:
        return dict.fromkeys(values, _around(ordered))
    found: dict[float, Others] = {}
    for value in ordered:
        if value not in found:
            others = ordered.copy()
            others.remove(value)
            found[value] = _around(others)
    return {key: found[value] for key, value in values.items()}


def _around(values: Sequence[float]) -> Others:
    middle = statistics.median(values)
    return Others(middle, spread_around(values, middle))


def spread_around(values: Sequence[float], middle: float) -> float:
    """The median distance of the values, as the standard deviation of normal ones."""
    return _NORMAL * statistics.median(abs(value - middle) for value in values)
