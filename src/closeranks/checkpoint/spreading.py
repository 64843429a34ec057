"""Which peers keep an object: those that share the least fate with its owner and with each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

Fate = frozenset[str]  # "level=name" of everything that a machine fails with, itself included


class Neighbours(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of where the owner of a save and its peers stand; nothing, by default."""

    own: Fate = frozenset()
    peers: Mapping[str, Fate] = {}  # by target, as the tier names it


def spread(order: Sequence[int], count: int, own: Fate, peers: Sequence[Fate]) -> tuple[int, ...]:
    """The peers in the order in which they are to be used: the first ``count`` share as little as they can.

    One after the other the peer is taken that has the fewest domains in common with the owner and with those taken so
    far, added up; among equals the first in ``order``. A save is needed when its owner is lost, so that one counts like
    a peer that was taken already.

    Args:
        order: numbers of the peers, each once.
        count: how many of them get something.
        own: of the owner.
        peers: by number.
    """
    left, taken, fates = list(order), list[int](), [own]
    while left and len(taken) < count:
        best = min(left, key=lambda peer: sum(len(peers[peer] & fate) for fate in fates))  # the first of equals
        left.remove(best)
        taken.append(best)
        fates.append(peers[best])
    return (*taken, *left)
