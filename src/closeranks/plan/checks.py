"""Arguments are checked once, here, and a wrong one is named with its bound and the way out.

The callers are modellers: every error of this module is theirs (a number that no cluster can have),
never a state of the system.
"""

from __future__ import annotations

import math

from closeranks.plan.elementwise import Floats, Real, every, real

__all__ = [
    "Floats",
    "NotSolvableError",
    "PlanInputError",
    "Real",
    "not_negative",
    "plain",
    "positive",
    "share",
    "whole",
]


class PlanInputError(ValueError):
    """A value that the mathematics is not defined for. Nothing was computed."""

    def __init__(self, where: str, expected: str, got: object, way_out: str) -> None:
        """Keep the four parts: ``where``, ``expected``, ``got`` and ``way_out``."""
        self.where, self.expected, self.got, self.way_out = where, expected, got, way_out
        super().__init__(f"{where}: expected {expected}, got {got}; {way_out}")


class NotSolvableError(ValueError):
    """The inputs are legal but no answer meets the demand; the text says which demand to loosen."""


def _checked(where: str, value: Real, good: str, expected: str, way_out: str) -> Real:
    checked = real(value)
    tests = {"positive": (checked > 0, math.inf), "not negative": (checked >= 0, math.inf), "share": (checked >= 0, 1)}
    enough, most = tests[good]
    held = enough & (checked <= most) & (checked < math.inf)
    if not every(held):
        bad = checked if isinstance(checked, float) else checked[~held].flat[0]
        raise PlanInputError(where, expected, f"{bad:g}", way_out)
    return checked


def positive(where: str, value: Real, way_out: str = "give a finite number above zero") -> Real:
    """Return ``value`` as float64 if every element is finite and above zero."""
    return _checked(where, value, "positive", "a finite number > 0", way_out)


def not_negative(where: str, value: Real, way_out: str = "use 0 to switch this part off") -> Real:
    """Return ``value`` as float64 if every element is finite and at least zero."""
    return _checked(where, value, "not negative", "a finite number >= 0", way_out)


def share(where: str, value: Real, way_out: str = "give a share, 0.25 for 25 %") -> Real:
    """Return ``value`` as float64 if every element lies in [0, 1]."""
    return _checked(where, value, "share", "a share in [0, 1]", way_out)


def whole(where: str, value: int, least: int = 0) -> int:
    """Return ``value`` if it is a whole number of at least ``least``."""
    if value != int(value) or value < least:
        raise PlanInputError(where, f"a whole number >= {least}", value, "counts cannot be fractions")
    return int(value)


def plain(array: Real) -> Real:
    """Return a 0-d result as a float and anything else as it is."""
    return float(array) if isinstance(array, float | int) or array.ndim == 0 else real(array)
