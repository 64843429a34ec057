"""A node does not answer: wait for it, declare it lost, or give up. Asked again and again by whoever coordinates.

A silent node may live, and its workers with it. It is lost for certain only once they must have stopped: some time
after the last permission that it can have had. Until then nothing of it is replaced.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Policy(StrEnum):
    """What to do about a node that is out of reach (``--on-partition``)."""

    WAIT = "wait"  # keep its seats for it: its memory is worth more than the time
    REPLACE = "replace"  # as soon as it is safe, if something can take its seats


_NO_ROOM: Final = {
    False: "no other node has room for its seats",
    True: "other nodes have no room for the seats of all that are silent",
}


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a node that does not answer."""

    node: str
    policy: Policy
    silent_s: float  # since it was last heard
    fenced_after_s: float  # then its workers have stopped by themselves, whatever it is that happened
    patience_s: float  # then its seats are not kept any longer
    seats: int  # that it holds
    proven_gone: bool = False  # a second path has shown that its supervisor ended, and its workers with it
    succeeded: bool = False  # its node was started anew, and waits to be let in
    replaceable: bool = False  # other nodes have room for its seats
    room_for_all: bool = True  # and for those of all nodes that are silent, too
    dispensable: bool = False  # the job may go on with fewer seats


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Not yet: ask again after this time at the latest."""

    more_s: float
    reason: str


class DeclareLost(msgspec.Struct, frozen=True, kw_only=True):
    """It is safe and wanted to go on without the node."""

    detail: str


class GiveUp(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing can go on without the node, and it was waited for long enough: ``NodeLost.hopeless``."""

    reason: str


def judge(silence: Silence) -> Wait | DeclareLost | GiveUp:
    """What to do about the node now."""
    s = silence
    if s.proven_gone:
        return DeclareLost(detail=f"its supervisor has ended, {s.silent_s:.1f} s after it was last heard")
    if s.silent_s < s.fenced_after_s:
        told = f"{s.node} is silent for {s.silent_s:.1f} s: its workers may still act"
        return Wait(more_s=s.fenced_after_s - s.silent_s, reason=told)
    if s.seats == 0:
        return DeclareLost(detail=f"silent for {s.silent_s:.1f} s, and no seat is there")
    if s.succeeded:
        return DeclareLost(detail=f"silent for {s.silent_s:.1f} s, and its node was started anew")
    patience_s = max(s.patience_s, s.fenced_after_s)
    # A group that stays short is not helped by one of its nodes, and what the others hold in memory may come back.
    if s.policy is Policy.REPLACE and s.replaceable and s.room_for_all:
        return DeclareLost(detail=f"silent for {s.silent_s:.1f} s, its workers have stopped by themselves")
    if s.silent_s < patience_s:
        why = "its seats are kept for it" if s.policy is Policy.WAIT else _NO_ROOM[s.replaceable]
        return Wait(more_s=patience_s - s.silent_s, reason=f"{s.node} is silent for {s.silent_s:.1f} s: {why}")
    if s.replaceable or s.dispensable:
        return DeclareLost(detail=f"silent for {s.silent_s:.1f} s, longer than the {patience_s:g} s it was waited for")
    return GiveUp(
        reason=(
            f"{s.node} with {s.seats} seats did not answer for {s.silent_s:.1f} s and no other node has room for them; "
            "mend its network or start another node, then run again: saved state is picked up"
        )
    )
