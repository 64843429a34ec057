"""Where the members of a new term go on, and whose state the others take.

Replicated state must be equal on all seats that closed the same step; a seat whose digest is not that of the
majority is outvoted: it takes part, but receives.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from closeranks.decide.protocol import ProcPaused
from closeranks.detect.corruption import vote


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Continue after ``step``. Seats in ascending order; ``donor`` is None when nobody receives."""

    step: int
    donor: int | None
    receivers: tuple[int, ...]
    outvoted: tuple[int, ...]
    reason: str


class NoDonor(msgspec.Struct, frozen=True, kw_only=True):
    """No survivor's state can be given to others."""

    reason: str


class NoMajority(msgspec.Struct, frozen=True, kw_only=True):
    """The survivors of the newest step contradict each other: corruption is suspected."""

    step: int
    reason: str


def agree(brought: Mapping[int, ProcPaused], newcomers: frozenset[int]) -> Plan | NoDonor | NoMajority:
    """The restore plan for survivors (``brought[seat]``) and newcomers (seats).

    Donors are intact and settled seats at the newest step that such a seat closed, in the majority (more than
    half) of their digests; a single one is a majority of itself. Settled does not matter when nobody is new and
    nobody's buckets are laid out yet: all layouts are at the same stage then.
    """
    laid_out = bool(newcomers) or any(b.settled for b in brought.values())
    able = {seat: b for seat, b in brought.items() if b.intact and (b.settled or not laid_out)}
    if not able:
        return NoDonor(reason=_why_no_donor(brought))
    step = max(b.closed_step for b in able.values())
    newest = {seat: b.digest for seat, b in able.items() if b.closed_step == step}
    counted = vote(newest)
    if not counted.settled:
        digests = ", ".join(f"seat {seat}: {d[:12]}" for seat, d in sorted(newest.items()))
        return NoMajority(step=step, reason=f"digests at step {step} have no majority ({digests})")
    majority = counted.majority
    receivers = tuple(sorted((set(brought) | newcomers) - set(majority)))
    outvoted = counted.outvoted
    donor = majority[0] if receivers else None
    return Plan(
        step=step,
        donor=donor,
        receivers=receivers,
        outvoted=outvoted,
        reason=_in_words(donor, len(majority), len(newest), receivers, outvoted),
    )


def _why_no_donor(brought: Mapping[int, ProcPaused]) -> str:
    if not brought:
        return "no member survived"
    torn = sorted(seat for seat, b in brought.items() if not b.intact)
    loose = sorted(seat for seat, b in brought.items() if b.intact)
    parts = [f"the state of seats {torn} is torn"] if torn else []
    parts += [f"the gradient buckets of seats {loose} have no final layout yet"] if loose else []
    return " and ".join(parts)


def _in_words(donor: int | None, votes: int, voters: int, receivers: tuple[int, ...], outvoted: tuple[int, ...]) -> str:
    agreed = f"{votes} of {voters} intact seats at the newest step agree"
    if donor is None:
        return f"{agreed}; nobody needs a transfer"
    text = f"{agreed}; seat {donor} gives its state to seats {list(receivers)}"
    return f"{text}; outvoted: seats {list(outvoted)}" if outvoted else text
