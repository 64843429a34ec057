"""Silent corruption: who is outvoted among replicas, and what a replay says about the first attempt.

A replay can convict hardware because a step is a function of its data, its state and its random numbers: what comes
out differently in one seat was computed wrongly there once. What comes out alike says nothing against a device until
another process has repeated it: the data may be bad, the mathematics may be, or a fault may stay with the device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """What replicas say of state that must be equal; keys are seats."""

    settled: bool  # more than half agree; False: nobody can be named
    digest: str | int  # the most frequent one
    majority: tuple[int, ...]  # who has it
    outvoted: tuple[int, ...]  # who has another one


def vote(digests: Mapping[int, str | int]) -> Vote:
    """Count the digests of at least one seat; a single one is a majority of itself."""
    digest, votes = Counter(digests.values()).most_common(1)[0]
    return Vote(
        settled=2 * votes > len(digests),
        digest=digest,
        majority=tuple(sorted(seat for seat, found in digests.items() if found == digest)),
        outvoted=tuple(sorted(seat for seat, found in digests.items() if found != digest)),
    )


def digest_every(digest_s: float, step_s: float, share: float) -> int:
    """Steps from one digest of the state to the next, so that digests take at most ``share`` of the time.

    The whole of it: one after every step, however long this one took.
    """
    if step_s <= 0 or share >= 1:
        return 1
    return max(1, min(10_000, math.ceil(digest_s / (share * step_s))))


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one seat computed in one attempt."""

    proc: int  # the process: another one in the same seat is another witness
    finite: bool  # every gradient of its own, before anybody else's was added
    norm: float  # of its own gradients, before the reduction
    fingerprint: int  # of its own gradients, before the reduction
    reduced: int = 0  # digest of the gradients about to be applied; 0: not taken
    state: int = 0  # digest of parameters and optimizer state before the update; 0: not taken
    loss: float | None = None  # None: not reported
    batch: int = 0  # digest of the data that it trained on; 0: not taken
    part: int = -1  # the seat whose batch and random numbers these were, in a spot check; -1: its own


class Verdict(StrEnum):
    """What a replay says."""

    TRANSIENT = "transient"  # one seat computed something else the second time, and the second time is in order
    PERSISTENT = "persistent"  # one seat computes something wrong each time, or another process there does not
    REPEATED = "repeated"  # the same processes found the same
    CORRECT = "correct"  # another process found the same: it is the data or the mathematics, no device
    UNREPEATABLE = "unrepeatable"  # so many seats differ that the step cannot be repeated exactly


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict and the seats that it convicts; nobody unless it is transient or persistent."""

    verdict: Verdict
    seats: tuple[int, ...]
    reason: str


def judge(
    first: Sequence[Evidence], again: Sequence[Evidence], suspects: frozenset[int], suspects_again: frozenset[int]
) -> Judgement:
    """Compare two attempts at one step, evidence by seat; ``suspects`` are seats with something odd in them.

    When more than half of the seats differ the step is not repeatable, by nondeterministic kernels or random numbers
    that are not managed, and no device is to blame.
    """
    seats = range(len(first))
    changed = {seat for seat in seats if _own(first[seat]) != _own(again[seat])}
    changed |= _outvoted(first) ^ _outvoted(again)
    moved = {seat for seat in seats if first[seat].proc != again[seat].proc}
    if not changed:
        if moved & suspects:
            told = f"another process in seats {sorted(moved & suspects)} found the same"
            return Judgement(verdict=Verdict.CORRECT, seats=(), reason=told)
        return Judgement(verdict=Verdict.REPEATED, seats=(), reason="all seats found the same again")
    named = tuple(sorted(changed))
    if len(first) > 1 and 2 * len(changed) > len(first):
        told = f"{len(changed)} of {len(first)} seats differ: the step is not repeatable"
        return Judgement(verdict=Verdict.UNREPEATABLE, seats=(), reason=told)
    if changed <= moved:
        told = f"another process in seats {list(named)} found something else"
        return Judgement(verdict=Verdict.PERSISTENT, seats=named, reason=told)
    if not suspects_again:
        told = f"seats {list(named)} found something else the second time, and nothing is odd in it"
        return Judgement(verdict=Verdict.TRANSIENT, seats=named, reason=told)
    bad = tuple(sorted(changed & suspects_again)) or named
    told = f"seats {list(bad)} found something else the second time, and it is odd again"
    return Judgement(verdict=Verdict.PERSISTENT, seats=bad, reason=told)


def _own(evidence: Evidence) -> tuple[bool, int, int]:
    return evidence.finite, evidence.fingerprint, evidence.batch


def _outvoted(evidence: Sequence[Evidence]) -> set[int]:
    """Seats whose reduced gradients are not those of the majority."""
    if not all(one.reduced for one in evidence):
        return set()
    counted = vote({seat: one.reduced for seat, one in enumerate(evidence)})
    return set(counted.outvoted) if counted.settled else set()
