"""Many writers and one shared store: how long a checkpoint storm takes, and what staggering or staging changes."""

from __future__ import annotations

import msgspec
import numpy as np

from closeranks.plan.checks import PlanInputError, Real, not_negative, plain, positive


def write_s(size_bytes: Real, bytes_per_s: Real) -> Real:
    """Return the seconds to write ``size_bytes``. Source: size over bandwidth."""
    return plain(not_negative("size_bytes", size_bytes) / positive("bytes_per_s", bytes_per_s))


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """All writers at once into one store. ``limited_by`` is "store" or "writer"."""

    total_bytes: float
    seconds: float
    bytes_per_s_each: float
    limited_by: str


def storm(
    writers: float, bytes_each: float, store_bytes_per_s: float, writer_bytes_per_s: float = float("inf")
) -> Storm:
    """Return how long ``writers`` take when all begin together and share the store fairly.

    Source: fluid fair-share model; MLSysBook, "checkpoint storm".
    """
    total = float(positive("writers", writers) * positive("bytes_each", bytes_each))
    fair = float(positive("store_bytes_per_s", store_bytes_per_s)) / writers
    each = min(fair, writer_bytes_per_s)
    limited = "store" if fair <= writer_bytes_per_s else "writer"
    return Storm(total_bytes=total, seconds=bytes_each / each, bytes_per_s_each=each, limited_by=limited)


def store_needed_bytes_per_s(total_bytes: Real, goal_s: Real) -> Real:
    """Return the store bandwidth that writes everything in ``goal_s``. Source: size over time."""
    return plain(not_negative("total_bytes", total_bytes) / positive("goal_s", goal_s))


class Stagger(msgspec.Struct, frozen=True, kw_only=True):
    """Writers in waves. Everybody is written after ``seconds``; each waits only ``seconds_each`` in its own wave."""

    waves: int
    seconds: float
    seconds_each: float
    mean_end_s: float


def staggered(writers: int, bytes_each: float, store_bytes_per_s: float, together: int) -> Stagger:
    """Return the same storm with at most ``together`` writers at a time.

    The last byte lands no earlier (the store is the limit), but the mean writer is done in about half the time and
    each holds its buffers for one wave only.

    Source: processor sharing against first-come service, Kleinrock 1976.
    """
    if not 1 <= together <= writers:
        raise PlanInputError("together", f"1 to writers ({writers})", together, "all at once is the plain storm")
    waves = -(-writers // together)
    sizes = np.full(waves, float(together))
    sizes[-1] = writers - together * (waves - 1)
    each = sizes * float(positive("bytes_each", bytes_each)) / float(positive("store_bytes_per_s", store_bytes_per_s))
    ends = np.cumsum(each)
    mean_end_s = float((ends * sizes).sum() / writers)
    return Stagger(waves=waves, seconds=float(ends[-1]), seconds_each=float(each[0]), mean_end_s=mean_end_s)


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """A save that pauses training for the near tier only and drains to the far one behind it.

    ``holds`` is false where the next save begins before the drain has ended.
    """

    pause_s: float
    drain_s: float
    holds: bool
    reason: str


def staged(
    bytes_each: float, near_bytes_per_s: float, writers: float, store_bytes_per_s: float, interval_s: float
) -> Staged:
    """Return pause and drain of staging through local memory or disk.

    Source: two-stage pipeline; the drain must fit into the interval (Moody et al. 2010, SCR).
    """
    pause = float(write_s(bytes_each, near_bytes_per_s))
    drain = storm(writers, bytes_each, store_bytes_per_s).seconds
    holds = drain <= float(positive("interval_s", interval_s)) + pause
    text = (
        f"the drain of {drain:.4g} s fits into the interval of {interval_s:g} s"
        if holds
        else f"the drain of {drain:.4g} s outlasts the interval of {interval_s:g} s: save less often or add bandwidth"
    )
    return Staged(pause_s=pause, drain_s=drain, holds=holds, reason=text)
