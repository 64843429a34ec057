"""What the next coordinator cannot see from outside: budgets, failures that were seen before, the open incident.

A memo reaches every node before the decisions that came with its state or an earlier one: whoever was told something
has the memo.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from closeranks.decide import quarantine
from closeranks.decide.budgets import Ledger
from closeranks.decide.canary import Canary
from closeranks.decide.pace import Pace
from closeranks.decide.state import State


class Memo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a controller without its processes, which their nodes know better."""

    at_s: float  # on the clock that all its times are of
    members: tuple[int, ...]  # in seats, meant for them, or on their way out of them
    state: State


def memo_of(state: State, now_s: float) -> Memo:
    """The memo of this moment."""
    members = tuple(sorted(p.proc for p in state.procs.values() if p.seat is not None))
    return Memo(at_s=now_s, members=members, state=replace(state, procs={}, poison=None))


def encode(memo: Memo) -> bytes:
    """As MessagePack."""
    return msgspec.msgpack.encode(memo)


def decode(data: bytes) -> Memo:
    """The memo in these bytes.

    Raises:
        msgspec.MsgspecError: not a memo of this version.
    """
    return msgspec.msgpack.decode(data, type=Memo)


def worth_sending(sent: Memo, newer: Memo) -> bool:
    """More has changed than that training went on."""
    return _marks(sent) != _marks(newer)


def _marks(memo: Memo) -> tuple[tuple[int, ...], State]:
    state = memo.state
    group = replace(state.group, newest_step=-1)
    return memo.members, replace(state, group=group, pace=Pace(), canary=Canary(), since_s=0.0, next_proc=0)


def on_clock(memo: Memo, now_s: float) -> State:
    """The memo's state with its times on another clock, as if it had been written just now."""
    state, later_s = memo.state, now_s - memo.at_s
    settling, incident = state.pace.settling, state.incident
    if settling is not None:
        began_s, opened_s = settling.streak_began_s + later_s, settling.opened_s + later_s
        settling = replace(settling, streak_began_s=began_s, opened_s=opened_s)
    if incident is not None:
        moved = {"opened_s": incident.opened_s + later_s, "not_before_s": incident.not_before_s + later_s}
        incident = replace(incident, **moved)
    return replace(
        state,
        ledger=_moved(state.ledger, later_s),
        pace=replace(state.pace, settling=settling),
        incident=incident,
        register=quarantine.moved(state.register, later_s),
        since_s=now_s,
    )


def _moved(ledger: Ledger, later_s: float) -> Ledger:
    return replace(
        ledger,
        incidents=tuple(t + later_s for t in ledger.incidents),
        spares=tuple(t + later_s for t in ledger.spares),
        causes={place: tuple(t + later_s for t in times) for place, times in ledger.causes.items()},
    )
