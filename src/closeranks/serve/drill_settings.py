"""``[drill]`` of a gateway, and what may be ordered under it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from closeranks.serve.policies.bounds import positive

SESSIONS = "sessions"
"""The store of ``[sessions]``, where a dependency is named."""
DELAY_S_MAX = 60.0


class DrillSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[drill]``: whether whoever has the admin token may break what this gateway depends on, and for how long."""

    allow: bool = False
    longest_s: float = 120.0

    def __post_init__(self) -> None:
        positive(self, "longest_s")


class Effect(StrEnum):
    """What becomes of a call to a dependency."""

    DELAY = "delay"  # it is answered so much later
    FAIL = "fail"  # it is answered at once, with an error
    KILL = "kill"  # nobody is there


class DrillOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /drill``: a dependency and an effect, or the name of a level of the ladder."""

    dependency: str = ""
    effect: Effect = Effect.FAIL
    delay_s: float = 0.0
    tier: str = ""
    for_s: float = 30.0

    @property
    def what(self) -> str:
        """In words."""
        if self.tier:
            return f"tier {self.tier}"
        how = f" by {self.delay_s:g} s" if self.effect is Effect.DELAY else ""
        return f"{self.effect} {self.dependency}{how}"


class BadOrder(ValueError):
    """The order cannot be carried out; nothing has changed."""


def check(order: DrillOrder, settings: DrillSettings, dependencies: Collection[str], tiers: Collection[str]) -> None:
    """The order names one thing that there is, and is bounded.

    Raises:
        BadOrder: what was expected, and what there is.
    """
    if bool(order.dependency) == bool(order.tier):
        raise BadOrder("expected a dependency or a tier, and not both")
    if order.dependency and order.dependency not in dependencies:
        raise BadOrder(f"no dependency {order.dependency!r}; known: {', '.join(sorted(dependencies))}")
    if order.tier and order.tier not in tiers:
        raise BadOrder(
            f"no tier {order.tier!r}; known: {', '.join(sorted(tiers)) or 'none: there is no [[ladder.level]]'}"
        )
    if not 0 < order.for_s <= settings.longest_s:
        raise BadOrder(f"for_s: expected more than 0 and at most {settings.longest_s:g}, got {order.for_s:g}")
    if order.dependency and (order.effect is Effect.DELAY) != (0 < order.delay_s <= DELAY_S_MAX):
        raise BadOrder(f'delay_s: expected up to {DELAY_S_MAX:g} with effect "delay", else 0, got {order.delay_s:g}')
