"""Where this node and the peers of its tiers stand: a copy beside what it is a copy of is lost with it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping

from closeranks.checkpoint.peers import address_of
from closeranks.checkpoint.spreading import MACHINE, Fate, Neighbours
from closeranks.checkpoint.tiers import Tiers
from closeranks.launch import domains
from closeranks.launch.domains import DomainsFile, domains_of
from closeranks.nodes.interfaces import interfaces
from closeranks.run.context import Context


def neighbours_of(context: Context, tiers: Tiers) -> Neighbours:
    """As the file of ``--domains`` has it, with what the environment tells of this node; each machine by itself, else.

    Raises:
        DomainsProblem: see ``domains.read`` and ``domains_of``.
    """
    targets = [target for tier in tiers.others if tier.kind == "peers" for target in tier.targets]
    if not targets:
        return Neighbours()
    file = domains.read(context.options.domains)
    hostname = socket.gethostname()
    addresses = (interface.address for interface in interfaces())
    levels = domains_of(context.options.node, hostname, file, context.environment)
    own = fate_of(levels, (hostname, context.node.host, *addresses))
    return Neighbours(own=own, peers={target: _of_peer(target, file) for target in targets})


def fate_of(levels: Mapping[str, str], machines: Iterable[str]) -> Fate:
    """What a machine under these names shares with others."""
    shared = {f"{level}={name}" for level, name in levels.items()}
    return frozenset(shared | {f"{MACHINE}={_short(name)}" for name in machines})


def _short(name: str) -> str:
    """A host's name without its domain; an address as it is."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.partition(".")[0]
    return name


def _of_peer(target: str, file: DomainsFile | None) -> Fate:
    host = address_of(target).host
    return fate_of(domains_of("", host, file), (host,))
