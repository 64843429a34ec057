"""Which work a node is fit for: a new or repaired one fails most in its first hours, and long work loses most then."""

from __future__ import annotations

from typing import Final

import msgspec

INFANT_H: Final = 72.0  # in which the failures of early life show themselves; burn-in takes the first of them
UNKNOWN_H: Final = 1e6  # of work without a known end; infinity cannot be written as JSON
_SHORT_H: Final = 1.0  # work that any node may take that passed its checks


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """It may take the work."""


class NotYet(msgspec.Struct, frozen=True, kw_only=True):
    """The work is too long for what is known of the node."""

    reason: str


def fit_for(work_h: float, passed_h: float, infant_h: float = INFANT_H) -> Fit | NotYet:
    """Whether a node may take work that is expected to last so long; ``passed_h``: hours of work since it was new.

    A node takes what is no longer than it has lasted, and everything once its early life is over. Hours count from
    the last repair, too. The length of work that is not known is ``UNKNOWN_H``.

    Source: own; with a hazard that falls as 1/t, the chance to fail in work of length t after age t is one half of
    what it was in the first t, whatever t.
    """
    if passed_h >= infant_h or work_h <= max(_SHORT_H, passed_h):
        return Fit()
    wanted = "work without a known end" if work_h >= UNKNOWN_H else f"{work_h:.3g} h of work"
    return NotYet(reason=f"{passed_h:.3g} h of {infant_h:g} h passed without a failure, {wanted} asked for")
