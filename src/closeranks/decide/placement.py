"""Which node a seat goes to: where it was, else where a process waits for it, far from what failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

_RANK = re.compile(r"(.*?)(\d*)")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A node on which seats can be placed."""

    name: str
    room: int  # seats that it can take
    spares: int = 0  # processes that wait there for a seat
    exposed: int = 0  # failure domains that it shares with nodes that were lost


def rank(name: str) -> tuple[str, int]:
    """The order of nodes: n2 comes before n10."""
    match = _RANK.fullmatch(name)
    stem, digits = match.groups() if match is not None else (name, "")
    return stem, int(digits or -1)


def first_layout(seats: int, slots: Mapping[str, int], nodes_needed: int) -> tuple[str, ...]:
    """The node of every seat, ascending by rank: equal shares on the lowest ranks; a rest goes where slots are free.

    Empty if there are not enough nodes or slots.
    """
    if len(slots) < nodes_needed or sum(slots.values()) < seats:
        return ()
    names = sorted(slots, key=rank)
    share = -(-seats // nodes_needed)
    taken = dict.fromkeys(names, 0)
    left = seats
    for limit in (share, seats):
        for name in names if limit == seats else names[:nodes_needed]:
            more = min(left, max(0, min(slots[name], limit) - taken[name]))
            taken[name] += more
            left -= more
    return tuple(name for name in names for _ in range(taken[name]))


def place(homes: Mapping[int, str], sites: Iterable[Site]) -> dict[int, str]:
    """The node for each seat of ``homes`` (seat to the node where it last was); seats without a place are left out.

    A seat stays on its node where that is there and has room. The seats of a lost node move together where they
    can, so that they stay neighbours: to where processes wait, then away from failed domains, then by rank.
    """
    open_sites = {site.name: site for site in sites if site.room > 0}
    placed: dict[int, str] = {}
    movers: dict[str, list[int]] = {}
    for seat, home in sorted(homes.items()):
        if home in open_sites:
            placed[seat] = home
            _take(open_sites, home, 1)
        else:
            movers.setdefault(home, []).append(seat)
    for home in sorted(movers, key=rank):
        seats = movers[home]
        while seats and open_sites:
            site = min(open_sites.values(), key=lambda site: _cost(site, len(seats)))
            here, seats = seats[: site.room], seats[site.room :]
            placed.update(dict.fromkeys(here, site.name))
            _take(open_sites, site.name, len(here))
    return placed


def _take(open_sites: dict[str, Site], name: str, seats: int) -> None:
    site = open_sites[name]
    if site.room == seats:
        del open_sites[name]
    else:
        open_sites[name] = msgspec.structs.replace(site, room=site.room - seats, spares=max(0, site.spares - seats))


def _cost(site: Site, seats: int) -> tuple[bool, int, int, int, tuple[str, int]]:
    splits = site.room < seats
    return splits, -min(site.spares, seats), site.exposed, -min(site.room, seats), rank(site.name)
