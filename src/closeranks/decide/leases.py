"""How long a right lasts, and from when on it has certainly ended elsewhere. Seconds, each by its owner's own clock.

Clocks are monotonic and never compared, only the lengths of intervals are: whoever waits for another's right to end
waits a little longer than the owner counts.
"""

from __future__ import annotations

from typing import Final

import msgspec

CLOCK_SLACK: Final = 0.05
"""Whoever waits for another clock waits longer by this share: enough for clocks that are 2 % too fast and too slow."""

REACTION_S: Final = 0.25
"""Within this time a timer of a supervisor fires and what it kills has ended."""

NEVER_S: Final = float("-inf")
"""The time of what did not happen."""


class Clockwork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set by the operator for the whole run, so that leaders, their nodes and their rivals count alike."""

    lease_s: float = 3.0  # a leader leads so long from the start of its last write, a grant lasts at most so long
    renew_s: float = 1.0  # from the start of one write of a leader to the start of its next
    fence_s: float = 1.0  # a node kills workers that have not paused so long after its last grant ran out
    authority_grace_s: float = 300.0  # a leader whose nodes all follow it goes on so long without the authority

    def __post_init__(self) -> None:
        """Refuse times under which leaders would lose their lease by themselves."""
        if not 0 < self.renew_s <= self.lease_s / 2:
            raise ValueError(
                f"lease: expected renewals above 0 s apart and at most half of the lease of {self.lease_s:g} s, got"
                f" {self.renew_s:g} s; raise the lease or renew more often"
            )
        if not (self.fence_s > 0 and self.authority_grace_s >= 0):
            raise ValueError(
                f"lease: expected a fence above 0 s and a grace of at least 0 s, got {self.fence_s:g} s and"
                f" {self.authority_grace_s:g} s"
            )


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """From when on a leader may give the seats of nodes that it does not reach to others, and why not earlier."""

    from_s: float
    reason: str


def outlasted(length_s: float) -> float:
    """How long to wait by one's own clock until an interval on any other clock is over."""
    return length_s * (1 + CLOCK_SLACK)


def fenced_at(last_granted_s: float, clockwork: Clockwork) -> float:
    """From when on a silent node has no acting workers, for the leader that sent it its last grant at that time.

    A node that was accepted and never granted anything counts from when its report came.
    """
    return last_granted_s + outlasted(clockwork.lease_s + clockwork.fence_s) + REACTION_S


def outnumbered(*, nodes: int, reached: int) -> bool:
    """Whether a leader follows the wrong side of a partition: it reaches less than half of the newest term's nodes.

    Of two equal halves the one with the leader goes on: the authority has broken the tie.
    """
    return 2 * reached < nodes


def replacement_allowed(
    *, nodes: int, reached: int, predecessor_s: float, let_go_s: float, clockwork: Clockwork
) -> Replacement:
    """From when on this leader may replace seats of nodes that have not followed it; for others see ``fenced_at``.

    An earlier leader that lost the authority grants on only while *all* nodes of the newest term follow it. One of them
    that follows this leader instead is the proof that it has stopped, a lease after that node let go of it.

    Args:
        nodes: of the newest term.
        reached: those of them that follow this leader.
        predecessor_s: no earlier leader began a successful write after this (``Reign.predecessor_s``).
        let_go_s: when the first of those reached sent its last beat to an earlier leader; any later time is safe.
        clockwork: of the run.
    """
    if reached and not outnumbered(nodes=nodes, reached=reached):
        return Replacement(
            from_s=fenced_at(max(predecessor_s, let_go_s), clockwork),
            reason=f"{reached} of {nodes} nodes follow: whatever an earlier leader granted to the others runs out",
        )
    return Replacement(
        from_s=predecessor_s + outlasted(clockwork.authority_grace_s + clockwork.fence_s) + REACTION_S,
        reason=f"only {reached} of {nodes} nodes follow: the others may be training under an earlier leader that has"
        f" lost the authority, for at most {clockwork.authority_grace_s:g} s",
    )
