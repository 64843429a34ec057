"""Arguments are checked once, here, and a wrong one is named with its bound and the way out.

The callers are modellers: every error of this module is theirs (a number that no cluster can have),
never a state of the system.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Real: TypeAlias = float | Floats
"""A number or an array of numbers; arrays broadcast against each other as numpy does."""


class PlanInputError(ValueError):
    """A value that the mathematics is not defined for. Nothing was computed."""

    def __init__(self, where: str, expected: str, got: object, way_out: str) -> None:
        """Keep the four parts: ``where``, ``expected``, ``got`` and ``way_out``."""
        self.where, self.expected, self.got, self.way_out = where, expected, got, way_out
        super().__init__(f"{where}: expected {expected}, got {got}; {way_out}")


class NotSolvableError(ValueError):
    """The inputs are legal but no answer meets the demand; the text says which demand to loosen."""


def _checked(where: str, value: object, good: str, expected: str, way_out: str) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    tests = {"positive": array > 0, "not negative": array >= 0, "share": (array >= 0) & (array <= 1)}
    held = tests[good] & np.isfinite(array)
    if not held.all():
        bad = array[~held].flat[0] if array.ndim else float(array)
        raise PlanInputError(where, expected, f"{bad:g}", way_out)
    return array


def positive(where: str, value: Real, way_out: str = "give a finite number above zero") -> Floats:
    """Return ``value`` as float64 if every element is finite and above zero."""
    return _checked(where, value, "positive", "a finite number > 0", way_out)


def not_negative(where: str, value: Real, way_out: str = "use 0 to switch this part off") -> Floats:
    """Return ``value`` as float64 if every element is finite and at least zero."""
    return _checked(where, value, "not negative", "a finite number >= 0", way_out)


def share(where: str, value: Real, way_out: str = "give a share, 0.25 for 25 %") -> Floats:
    """Return ``value`` as float64 if every element lies in [0, 1]."""
    return _checked(where, value, "share", "a share in [0, 1]", way_out)


def whole(where: str, value: int, least: int = 0) -> int:
    """Return ``value`` if it is a whole number of at least ``least``."""
    if value != int(value) or value < least:
        raise PlanInputError(where, f"a whole number >= {least}", value, "counts cannot be fractions")
    return int(value)


def plain(array: Floats) -> Real:
    """Return a 0-d result as a float and anything else as it is."""
    return float(array) if np.ndim(array) == 0 else np.asarray(array, dtype=np.float64)
