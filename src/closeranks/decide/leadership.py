"""Who leads: what one node's candidate does with the record of the run. Times are the candidate's own monotonic ones.

The register knows no time. A leader leads for a lease from the *start* of its last successful write; whoever wants its
place has to see the same (epoch, beat) for longer than that, counted from the *end* of the first read that showed it.
So the old one has stopped before a new one can win, whatever the clocks of both show. Only with its nodes' help it may
go on longer (``Around.heard_s``), and then every one of them knows.

The process around it asks the register one thing at a time, tells answers to ``observed`` and ``wrote``, a write
without one to ``unanswered``, and calls ``decide`` whenever something changed or ``again_s`` has come; it writes only
in place of the record that was seen last. A leader asks ``grantable_s`` before every single grant.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from closeranks.decide.leases import NEVER_S, Clockwork, outlasted

_RANKS_APART: Final = 20  # higher ranks do not wait any longer: of several that write at once one wins
_FIRST_DELAY_S: Final = 0.25  # by rank, before the first leader of a run
_TAKEOVER_DELAY_S: Final = 0.1  # by rank, after a lease ran out
_OUTNUMBERED_LEASES: Final = 2  # so long a leader waits for its nodes before it lets others try
_ATTEMPTS_KEPT: Final = 8
_FOREVER_S: Final = float("inf")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What matters here of the record in the register."""

    epoch: int = 0  # 0: nobody has led yet
    beat: int = 0
    boot: str = ""  # of the candidate that leads
    ended: bool = False  # the run is over
    released: bool = False  # the leader gave the lead up: it has stopped granting, and others need not wait


class Ballot(msgspec.Struct, frozen=True, kw_only=True):
    """Epoch and beat of a record to write. No two writes of a run have the same, with the boot of who wrote them."""

    epoch: int
    beat: int


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A write that was begun, and may take place at any time."""

    ballot: Ballot
    begun_s: float
    replaces_s: float  # when the record that it replaces had been seen first


class Reign(msgspec.Struct, frozen=True, kw_only=True):
    """This candidate leads."""

    epoch: int
    predecessor_s: float  # no earlier leader began a successful write after this
    since_s: float
    renewed_s: float  # start of the last successful write
    outnumbered_s: float = _FOREVER_S  # since when it reaches too few nodes


class Candidacy(msgspec.Struct, frozen=True, kw_only=True):
    """Of one candidate process: what it saw of the record, what it wrote, and whether it leads."""

    boot: str
    rank: int
    clockwork: Clockwork = msgspec.field(default_factory=Clockwork)
    read: bool = False  # the record was read at least once
    seen: Seen = msgspec.field(default_factory=Seen)
    seen_s: float = NEVER_S  # when this (epoch, beat) had been read for the first time
    attempts: tuple[Attempt, ...] = ()  # those that could still turn up
    writing: bool = False  # the newest of them has no answer yet
    doubtful: bool = False  # it got none: read before the next bid for the lead
    reign: Reign | None = None
    highest: int = 0  # epoch ever seen or tried
    resigned: int = 0  # own epoch that was given up; a record that names it is a stranger's
    hold_s: float = NEVER_S  # others may try until then
    insists: bool = False  # it let others try, and nobody did


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What the candidate's process knows at this moment besides the record."""

    now_s: float
    led: bool  # its own supervisor holds a valid grant of a leader (allegiance.led)
    retired: bool = False  # it seeks the lead no more
    leader_ended: bool = False  # certain: the process that the record names has ended. It was this node's.
    heard_s: float = NEVER_S
    """Of a leader: when it sent the grants that its nodes have acknowledged; the newest by node, of these the oldest.

    Over the nodes of the newest term and of one whose write is in doubt. Never, while one of them has not followed.
    """
    outnumbered: bool | None = None  # of a leader: leases.outnumbered; None: it is not known yet


class Follow(msgspec.Struct, frozen=True, kw_only=True):
    """The record's leader is the one to follow."""

    epoch: int
    again_s: float


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """There is nobody to follow, and it is not this candidate's turn yet."""

    reason: str
    again_s: float


class Contend(msgspec.Struct, frozen=True, kw_only=True):
    """Write a record with this ballot and oneself as the leader, in place of the one that was seen last."""

    ballot: Ballot
    reason: str


class Renew(msgspec.Struct, frozen=True, kw_only=True):
    """Write the own record with this ballot."""

    ballot: Ballot


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """Go on leading; nothing is to be written now."""

    until_s: float  # as things are
    again_s: float


class StepDown(msgspec.Struct, frozen=True, kw_only=True):
    """Stop granting and deciding, let go of all nodes."""

    reason: str


class Over(msgspec.Struct, frozen=True, kw_only=True):
    """The run has ended: nobody leads any more."""


Choice = Follow | Wait | Contend | Renew | Lead | StepDown | Over


def observed(candidacy: Candidacy, seen: Seen, now_s: float) -> Candidacy:
    """A read of the register was answered just now."""
    if not candidacy.read or _place(seen) != _place(candidacy.seen):
        candidacy = replace(candidacy, seen_s=now_s)
    highest = max(candidacy.highest, seen.epoch)
    candidacy = replace(candidacy, read=True, doubtful=False, seen=seen, highest=highest)
    if seen.boot != candidacy.boot:
        candidacy = replace(candidacy, hold_s=NEVER_S, insists=False)
    return _crowned(candidacy) if _own(candidacy) else candidacy


def wrote(candidacy: Candidacy, seen: Seen, now_s: float) -> Candidacy:
    """The newest attempt was answered: what the register holds now, whoever wrote it."""
    *older, newest = candidacy.attempts
    candidacy = observed(replace(candidacy, writing=False), seen, now_s)
    return candidacy if newest not in candidacy.attempts else replace(candidacy, attempts=tuple(older))


def unanswered(candidacy: Candidacy) -> Candidacy:
    """The register did not answer the newest attempt in time: it may take place later, or not."""
    return replace(candidacy, writing=False, doubtful=True)


def attempt(candidacy: Candidacy, now_s: float) -> tuple[Candidacy, Ballot]:
    """Begin a write of the leader's own, of a new term for example; it renews as any other."""
    if candidacy.reign is None or candidacy.writing:
        raise AssertionError("only a leader writes of its own accord, and one thing at a time")
    return _begun(candidacy, candidacy.reign.epoch, now_s)


def release(candidacy: Candidacy, now_s: float) -> tuple[Candidacy, Ballot]:
    """Lead no longer, and begin the write by which others hear that they need not wait for the end of the lease.

    It must grant nothing any more when this is called.
    """
    if candidacy.reign is None or candidacy.writing:
        raise AssertionError("only a leader gives the lead up, and writes one thing at a time")
    reign = candidacy.reign
    candidacy, ballot = _begun(candidacy, reign.epoch, now_s)
    return _resigned(candidacy, reign), ballot


def grantable_s(candidacy: Candidacy, now_s: float, heard_s: float = NEVER_S) -> float:
    """How long a grant sent now may last from the moment its beat was sent; 0: there must be none.

    So no grant outlives the lease of the leader that gave it. ``heard_s``: as in ``Around``.
    """
    reign = candidacy.reign
    if reign is None or not _own(candidacy):
        return 0.0
    return min(max(0.0, _until_s(candidacy, reign, heard_s) - now_s), candidacy.clockwork.lease_s)


def admits(candidacy: Candidacy, now_s: float) -> bool:
    """Whether supervisors that never followed this leader may join.

    Not while it grants without the authority: a supervisor that was started again knows nothing of the later leader
    that it has followed before.
    """
    reign = candidacy.reign
    return reign is not None and _own(candidacy) and now_s < _until_s(candidacy, reign, NEVER_S)


def decide(candidacy: Candidacy, around: Around) -> tuple[Candidacy, Choice]:
    """What to do now."""
    if not candidacy.read:
        return candidacy, Wait(reason="the record has not been read yet", again_s=_FOREVER_S)
    if candidacy.reign is not None:
        return _as_leader(candidacy, candidacy.reign, around)
    return _as_rival(candidacy, around)


def _as_leader(candidacy: Candidacy, reign: Reign, around: Around) -> tuple[Candidacy, Choice]:
    clockwork, now_s = candidacy.clockwork, around.now_s
    if not _own(candidacy):
        return replace(candidacy, reign=None), StepDown(
            reason=f"the register names epoch {candidacy.seen.epoch}, not our epoch {reign.epoch}"
        )
    until_s = _until_s(candidacy, reign, around.heard_s)
    if now_s >= until_s:
        return _resigned(candidacy, reign), StepDown(
            reason=f"the lease of epoch {reign.epoch} has run out: last renewed {now_s - reign.renewed_s:.2f} s ago"
        )
    since_s = min(reign.outnumbered_s, now_s) if around.outnumbered else _FOREVER_S
    reign = replace(reign, outnumbered_s=since_s)
    candidacy = replace(candidacy, reign=reign, insists=candidacy.insists and around.outnumbered is not False)
    yield_s = since_s + _OUTNUMBERED_LEASES * clockwork.lease_s
    if now_s >= yield_s and not candidacy.insists:
        hold_s = now_s + _OUTNUMBERED_LEASES * clockwork.lease_s + outlasted(clockwork.lease_s)
        return replace(_resigned(candidacy, reign), hold_s=hold_s, insists=True), StepDown(
            reason=f"epoch {reign.epoch} reached less than half of its nodes for {now_s - since_s:.2f} s: others try"
        )
    renew_s = _last_begun_s(candidacy, reign) + clockwork.renew_s
    if now_s < renew_s or candidacy.writing:
        wake_s = now_s + clockwork.renew_s if candidacy.writing else renew_s
        return candidacy, Lead(until_s=until_s, again_s=min(until_s, wake_s))
    candidacy, ballot = _begun(candidacy, reign.epoch, now_s)
    return candidacy, Renew(ballot=ballot)


def _as_rival(candidacy: Candidacy, around: Around) -> tuple[Candidacy, Choice]:
    seen, now_s = candidacy.seen, around.now_s
    if seen.ended:
        return candidacy, Over()
    if candidacy.writing or candidacy.doubtful:
        return candidacy, Wait(reason="it is not known yet whether our bid for the lead won", again_s=_FOREVER_S)
    if around.leader_ended and seen.epoch:
        due_s, reason = candidacy.seen_s, f"the leader of epoch {seen.epoch} has ended"
    elif seen.released:
        due_s = candidacy.seen_s + _delay_s(candidacy, _TAKEOVER_DELAY_S)
        reason = f"the leader of epoch {seen.epoch} has given the lead up"
    elif seen.epoch:
        delay_s = _delay_s(candidacy, _TAKEOVER_DELAY_S)
        due_s = max(candidacy.seen_s + outlasted(candidacy.clockwork.lease_s), candidacy.hold_s) + delay_s
        reason = f"epoch {seen.epoch} was not renewed for {now_s - candidacy.seen_s:.2f} s"
    else:
        due_s, reason = candidacy.seen_s + _delay_s(candidacy, _FIRST_DELAY_S), "nobody has led yet"
    led = around.led and not (around.leader_ended or seen.released)
    if now_s >= due_s and not (led or around.retired):
        candidacy, ballot = _begun(candidacy, candidacy.highest + 1, now_s)
        return candidacy, Contend(ballot=ballot, reason=reason)
    again_s = _FOREVER_S if led or around.retired else due_s
    if seen.epoch and seen.boot != candidacy.boot:
        return candidacy, Follow(epoch=seen.epoch, again_s=again_s)
    return candidacy, Wait(reason="nobody leads", again_s=again_s)


def _crowned(candidacy: Candidacy) -> Candidacy:
    """The record is of our own writing: we lead since the write that made it was begun."""
    seen, reign = candidacy.seen, candidacy.reign
    ours = [one for one in candidacy.attempts if one.ballot == Ballot(epoch=seen.epoch, beat=seen.beat)]
    if not ours:  # what was seen before is seen again
        return candidacy
    begun_s = ours[0].begun_s
    later = tuple(one for one in candidacy.attempts if one.begun_s > begun_s)
    if reign is None:
        reign = Reign(epoch=seen.epoch, predecessor_s=ours[0].replaces_s, since_s=begun_s, renewed_s=begun_s)
    return replace(candidacy, reign=replace(reign, renewed_s=begun_s), attempts=later)


def _until_s(candidacy: Candidacy, reign: Reign, heard_s: float) -> float:
    """When the lease runs out: by the authority, or while all nodes are known to follow."""
    clockwork = candidacy.clockwork
    grace_s = min(heard_s + clockwork.lease_s, reign.renewed_s + clockwork.authority_grace_s)
    return max(reign.renewed_s + clockwork.lease_s, grace_s)


def _resigned(candidacy: Candidacy, reign: Reign) -> Candidacy:
    return replace(candidacy, reign=None, resigned=reign.epoch)


def _own(candidacy: Candidacy) -> bool:
    return candidacy.seen.boot == candidacy.boot and candidacy.seen.epoch > candidacy.resigned


def _place(seen: Seen) -> tuple[int, int, str]:
    return seen.epoch, seen.beat, seen.boot


def _delay_s(candidacy: Candidacy, by_rank_s: float) -> float:
    return by_rank_s * min(candidacy.rank, _RANKS_APART)


def _last_begun_s(candidacy: Candidacy, reign: Reign) -> float:
    return max([reign.renewed_s, *(one.begun_s for one in candidacy.attempts)])


def _begun(candidacy: Candidacy, epoch: int, now_s: float) -> tuple[Candidacy, Ballot]:
    # Every attempt has a beat of its own, so that one which turns up late is not taken for a newer one.
    tried = [one.ballot.beat for one in candidacy.attempts if one.ballot.epoch == epoch]
    held = candidacy.seen.beat if candidacy.seen.epoch == epoch else 0
    ballot = Ballot(epoch=epoch, beat=max([held, *tried]) + 1)
    replaces_s = candidacy.seen_s if candidacy.seen.epoch else NEVER_S
    newest = Attempt(ballot=ballot, begun_s=now_s, replaces_s=replaces_s)
    attempts = (*candidacy.attempts, newest)[-_ATTEMPTS_KEPT:]
    return replace(candidacy, attempts=attempts, writing=True, highest=max(candidacy.highest, epoch)), ballot
