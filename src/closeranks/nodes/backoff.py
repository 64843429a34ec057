"""How long to wait before the next try."""

from __future__ import annotations

import random
from typing import NamedTuple

_DOUBLINGS_MAX = 60  # beyond it any ceiling is reached, and numbers grow without use


class Backoff(NamedTuple):
    """The upper bound of waits: doubled with every failure."""

    first_s: float = 0.05
    ceiling_s: float = 2.0


def wait_s(backoff: Backoff, failures: int, draw: random.Random) -> float:
    """Anything between nothing and the bound, with equal chance, so that many callers do not come back together.

    Source: M. Brooker, "Exponential Backoff and Jitter" (AWS Architecture Blog, 2015), full jitter.
    """
    bound_s = min(backoff.ceiling_s, backoff.first_s * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS_MAX))
    return draw.uniform(0.0, bound_s)
