"""``closeranks ckpt hold-memory``: this machine's memory as a home for the state of other nodes."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from closeranks.checkpoint.node_memory import available_bytes
from closeranks.checkpoint.peer_server import PeerServer
from closeranks.checkpoint.tiers import TOKEN_VARIABLE

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_USAGE = 2


def hold_memory(
    listen: Annotated[
        str, typer.Option(help="Address and port; loopback unless you say otherwise.")
    ] = "127.0.0.1:7400",
    limit: Annotated[str, typer.Option(help="At most so much memory, e.g. 64G. Default: half of what is free.")] = "",
) -> None:
    """Keep copies or fragments of other nodes' state in this machine's memory, until Ctrl-C.

    The tier of kind "peers" in --tiers names this address. Both sides need the same secret in the environment
    variable CLOSERANKS_PEER_TOKEN.
    """
    try:
        limit_bytes = _bytes_of(limit) if limit else available_bytes() // 2
        host, port = _address_of(listen)
        server = PeerServer(os.environ.get(TOKEN_VARIABLE, ""), limit_bytes, host, port)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"closeranks ckpt hold-memory: {error} (listen {listen}, secret in {TOKEN_VARIABLE})\n")
        raise typer.Exit(_USAGE) from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    host, port = server.address
    sys.stdout.write(f"closeranks: holding up to {limit_bytes:,} bytes at {host}:{port}\n")
    sys.stdout.flush()
    try:
        server.serve()
    except KeyboardInterrupt:
        sys.stdout.write(f"closeranks: {server.used_bytes:,} bytes are given back\n")


def _address_of(text: str) -> tuple[str, int]:
    """Port 0 takes any that is free; the line that is printed tells which."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise ValueError(f"--listen: expected host:port, such as 10.0.0.7:7400, got {text!r}")
    return host.strip("[]"), int(port)


def _bytes_of(text: str) -> int:
    unit = text[-1:].upper()
    number, scale = (text[:-1], _UNITS[unit]) if unit in _UNITS else (text, 1)
    try:
        value = int(float(number) * scale)
    except (ValueError, OverflowError):
        raise ValueError(f"--limit: expected a size such as 64G, got {text!r}") from None
    if value < 1:
        raise ValueError(f"--limit: expected at least 1 byte, got {text!r}")
    return value
