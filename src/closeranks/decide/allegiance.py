"""Whom a node's supervisor follows, and whether its workers may act. Times are the supervisor's own monotonic ones."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from closeranks.decide.leases import NEVER_S, Clockwork


class Allegiance(msgspec.Struct, frozen=True, kw_only=True):
    """One supervisor's. A new process begins with an empty one: it has no workers that anybody granted anything."""

    clockwork: Clockwork = msgspec.field(default_factory=Clockwork)
    epoch: int = 0  # of the leader that it follows; it never follows a lower one again
    linked: bool = False  # the connection to that leader stands
    until_s: float = NEVER_S  # its workers may act so long


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The leader is followed from now on; what an earlier one says is ignored."""

    epoch: int


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The leader is not followed; ``final``: never, else it may ask again at ``until_s``."""

    final: bool
    until_s: float
    reason: str


class Order(StrEnum):
    """What a supervisor does with its workers."""

    ACT = "act"
    INTERRUPT = "interrupt"  # have them leave their attempt, keep their memory and wait
    FENCE = "fence"  # kill those that have not paused


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The order in force, and when to look again; ``until_s`` is infinite when nothing changes by itself."""

    order: Order
    until_s: float


def welcomed(allegiance: Allegiance, epoch: int, now_s: float) -> tuple[Allegiance, Accepted | Refused]:
    """A leader of this epoch answered the supervisor's introduction.

    A higher epoch proves that the followed leader cannot write to the register any more. It is followed as soon as that
    leader has lost the connection or the grant has run out, and not before: a leader that holds its nodes together
    without the authority is not to be torn apart. The old grant lasts until it runs out, so that workers need not stop
    for a change of leaders.
    """
    if epoch < allegiance.epoch:
        reason = f"epoch {epoch} is over: this node follows epoch {allegiance.epoch}"
        return allegiance, Refused(final=True, until_s=float("inf"), reason=reason)
    if epoch > allegiance.epoch and allegiance.linked and led(allegiance, now_s):
        reason = f"this node holds a grant of epoch {allegiance.epoch} for another {allegiance.until_s - now_s:.2f} s"
        return allegiance, Refused(final=False, until_s=allegiance.until_s, reason=reason)
    return replace(allegiance, epoch=epoch, linked=True), Accepted(epoch=epoch)


def unlinked(allegiance: Allegiance) -> Allegiance:
    """The connection to the followed leader is gone; grants that it gave still hold."""
    return replace(allegiance, linked=False)


def granted(allegiance: Allegiance, epoch: int, beat_sent_s: float, lease_s: float) -> Allegiance:
    """The leader answered a beat that was sent at that time with a grant of that length, counted from the beat."""
    if epoch != allegiance.epoch:
        return allegiance
    until_s = beat_sent_s + min(lease_s, allegiance.clockwork.lease_s)
    return replace(allegiance, until_s=max(allegiance.until_s, until_s))


def led(allegiance: Allegiance, now_s: float) -> bool:
    """Whether a grant is valid: then this node's candidate has no reason to contend."""
    return now_s < allegiance.until_s


def standing(allegiance: Allegiance, now_s: float) -> Standing:
    """What the workers may do now."""
    if led(allegiance, now_s):
        return Standing(order=Order.ACT, until_s=allegiance.until_s)
    fence_s = allegiance.until_s + allegiance.clockwork.fence_s
    if now_s < fence_s:
        return Standing(order=Order.INTERRUPT, until_s=fence_s)
    return Standing(order=Order.FENCE, until_s=float("inf"))
