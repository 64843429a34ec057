"""Which peers keep an object: those that share the least fate with its owner and with each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

Fate = frozenset[str]  # "level=name" of everything that a machine fails with, itself included
MACHINE = "machine"  # the level that every machine has, by each of its names


class Neighbours(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of where the owner of a save and its peers stand; nothing, by default."""

    own: Fate = frozenset()
    peers: Mapping[str, Fate] = {}  # by target, as the tier names it


def spread(order: Sequence[int], count: int, own: Fate, peers: Sequence[Fate]) -> tuple[int, ...]:
    """The peers in the order in which they are to be used: the first ``count`` share as little as they can.

    One after the other the peer is taken that has the fewest domains in common with the owner and with those taken so
    far, added up; among equals one that has the fewest with those taken, and then the first in ``order``. A save is
    needed when its owner is lost: so that one counts like a peer that was taken, and its own machine comes last.

    Args:
        order: numbers of the peers, each once.
        count: how many of them get something.
        own: of the owner.
        peers: by number.
    """
    left, taken = list(order), list[int]()

    def cost(peer: int) -> tuple[bool, int, int]:
        with_owner, with_taken = peers[peer] & own, sum(len(peers[peer] & peers[other]) for other in taken)
        own_machine = any(domain.startswith(f"{MACHINE}=") for domain in with_owner)
        return own_machine, len(with_owner) + with_taken, with_taken

    while left and len(taken) < count:
        best = min(left, key=cost)  # the first of equals
        left.remove(best)
        taken.append(best)
    return (*taken, *left)
