"""Numbers of settings that have to make sense. Pure; raised while a value is made, so that a file can be blamed."""

from __future__ import annotations

import msgspec


def positive(settings: msgspec.Struct, *names: str) -> None:
    """Each of these is more than 0.

    Raises:
        ValueError: one is not, or is no number.
    """
    for name in names:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name}: expected more than 0, got {getattr(settings, name)}")


def within(settings: msgspec.Struct, low: float, high: float, *names: str) -> None:
    """Each of these is between the two, which it may be, too.

    Raises:
        ValueError: one is not, or is no number.
    """
    for name in names:
        if not low <= getattr(settings, name) <= high:
            raise ValueError(f"{name}: expected {low:g} to {high:g}, got {getattr(settings, name)}")
