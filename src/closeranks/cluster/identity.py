"""What a node is known by, read once from the command line and the environment."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from closeranks.launch import domains
from closeranks.launch.domains import DomainsProblem
from closeranks.nodes.handshake import Keys, TokenProblem, read_token
from closeranks.nodes.interfaces import InterfaceProblem, own_address
from closeranks.nodes.tls import Tls, TlsFiles, TlsProblem, contexts
from closeranks.nodes.words import Address
from closeranks.run.options import STORE_AUTHORITY, RunOptions

_ANYWHERE = Address(host="192.0.2.1", port=9)  # of a network for documentation: the default route leads there


class IdentityProblem(Exception):
    """This node cannot say who it is; nothing was started."""


class Identity(NamedTuple):
    """One supervisor process on one node."""

    run: str
    node: str
    rank: int
    boot: str
    host: str  # under which the others reach it
    hostname: str
    domains: dict[str, str]  # what fails with this node: level to name
    keys: Keys


def identity_of(options: RunOptions, environment: Mapping[str, str]) -> Identity:
    """Who this process is.

    Raises:
        IdentityProblem: what is missing or wrong, and the way out.
    """
    hostname = socket.gethostname()
    try:
        token = read_token(environment, None if options.token_file is None else Path(options.token_file))
        host = own_address(_towards(options), options.interface or "")
        levels = domains.domains_of(options.node, hostname, domains.read(options.domains), environment)
        tls = _tls(options)
    except (TokenProblem, InterfaceProblem, DomainsProblem, TlsProblem) as problem:
        raise IdentityProblem(str(problem)) from problem
    return Identity(
        run=options.run_id or "",
        node=options.node,
        rank=options.node_rank,
        boot=secrets.token_hex(8),
        host=host,
        hostname=hostname,
        domains=levels,
        keys=Keys(token, tls),
    )


def _tls(options: RunOptions) -> Tls | None:
    cert, key, ca = options.tls_cert, options.tls_key, options.tls_ca
    if cert is None or key is None or ca is None:
        return None
    return contexts(TlsFiles(Path(cert), Path(key), Path(ca)))


def meeting_point(options: RunOptions) -> Address | None:
    """Where the leader listens when it is given and not elected."""
    if options.rdzv_endpoint is None:
        return None
    host, _, port = options.rdzv_endpoint.rpartition(":")
    return Address(host=host.strip("[]"), port=int(port))


def _towards(options: RunOptions) -> Address:
    """Somewhere on the network that joins the nodes."""
    fixed = meeting_point(options)
    if fixed is not None:
        return fixed
    url = urlsplit((options.authority or STORE_AUTHORITY).partition(",")[0])
    if url.scheme == "etcd" and url.hostname is not None:
        return Address(host=url.hostname, port=url.port or 2379)
    return _ANYWHERE
