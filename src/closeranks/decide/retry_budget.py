"""Whether a failed request is tried again, and when: under the caller's deadline, from one budget, with full jitter.

Each of many callers that retries for itself multiplies the load on what is failing already. So retries are bounded
three times: by the tries of one request, by the deadline of whoever asked for it, and by a budget that all requests of
a process share, which successes refill.

Sources: M. Brooker, "Exponential Backoff and Jitter" (AWS Architecture Blog, 2015), full jitter; the retry throttling
of gRPC (proposal A6) and of Finagle (``RetryBudget``), both refilled by successes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

_DOUBLINGS_MAX = 60  # beyond it any ceiling is reached, and numbers grow without use


class Backoff(NamedTuple):
    """The upper bound of waits: doubled with every failure."""

    first_s: float = 0.05
    ceiling_s: float = 2.0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Retries that all requests together may still make."""

    most: float = 100.0
    left: float = 100.0
    per_success: float = 0.5
    per_s: float = 1.0  # so that nothing stands still for good
    at_s: float = 0.0  # when it was last looked at


class Request(NamedTuple):
    """One request that failed."""

    failures: int  # so far, this one included
    tries: int  # the first included, at most
    until_s: float = math.inf  # deadline of whoever asked for it


class Again(NamedTuple):
    """Try again after this wait."""

    wait_s: float


class GiveUp(NamedTuple):
    """Tell whoever asked."""

    reason: str


def wait_s(backoff: Backoff, failures: int, share: float) -> float:
    """Anything between nothing and the bound: ``share`` of it, drawn evenly from 0 to 1 by the caller.

    So many callers do not come back together.
    """
    bound_s = min(backoff.ceiling_s, backoff.first_s * 2.0 ** min(max(failures - 1, 0), _DOUBLINGS_MAX))
    return share * bound_s


def succeeded(budget: Budget, now_s: float) -> Budget:
    """A request came through."""
    full = _refilled(budget, now_s)
    return msgspec.structs.replace(full, left=min(full.most, full.left + full.per_success))


def failed(
    budget: Budget, request: Request, backoff: Backoff, now_s: float, share: float
) -> tuple[Budget, Again | GiveUp]:
    """A request failed in a way that may pass: the budget after it, and what to do."""
    budget = _refilled(budget, now_s)
    if request.failures >= request.tries:
        return budget, GiveUp(reason=f"tried {request.tries} times")
    pause_s = wait_s(backoff, request.failures, share)
    if now_s + pause_s >= request.until_s:
        return budget, GiveUp(reason="another try would come after the deadline")
    if budget.left < 1:
        return budget, GiveUp(reason="too many requests fail: the budget for further tries is used up")
    return msgspec.structs.replace(budget, left=budget.left - 1), Again(wait_s=pause_s)


def _refilled(budget: Budget, now_s: float) -> Budget:
    left = min(budget.most, budget.left + budget.per_s * max(0.0, now_s - budget.at_s))
    return msgspec.structs.replace(budget, left=left, at_s=max(now_s, budget.at_s))
