"""What is no cause because it was handled, or because it passed before anything failed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from closeranks.diagnose.evidence import Evidence, Source, Standing

SKEW_S: Final = 2.0  # clocks of nodes differ, and loggers write late: nearer times do not tell who was first
DEVICE_LAG_S: Final = 60.0  # a kernel writes its line after the process has felt the fault, but not much later


def past_and_live(everything: Sequence[Evidence]) -> tuple[list[Evidence], list[Evidence]]:
    """What was handled, or passed while no process said that something was wrong; and all else, in the same order."""
    hurt_s = sorted(item.at_s for item in everything if item.at_s is not None and _hurts(item))
    past: list[Evidence] = []
    live: list[Evidence] = []
    for item in everything:
        is_past = item.went_on or (item.over and not _any_between(hurt_s, item))
        (past if is_past else live).append(item)
    return past, live


def _hurts(item: Evidence) -> bool:
    return item.source in (Source.LOG, Source.LAUNCHER) and item.standing <= Standing.VICTIM and not item.went_on


def _any_between(hurt_s: Sequence[float], item: Evidence) -> bool:
    """Whether a process suffered while it lasted, or soon after."""
    if item.at_s is None or item.over_s is None:
        return False
    at = bisect_left(hurt_s, item.at_s - SKEW_S)
    return at < len(hurt_s) and hurt_s[at] <= item.over_s + DEVICE_LAG_S
