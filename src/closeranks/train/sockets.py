"""Waking a thread that is blocked inside gloo: shut down the sockets of one group and no others.

None of gloo's abort calls wakes a wait on a frozen or unreachable peer; ``shutdown(2)`` on its connected sockets
does, within milliseconds. Connections are told apart by the ports of the group's own listeners: one end of every
gloo connection is the listener of one of its members. A listening socket is never touched, since gloo ends the
process when its accept fails.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

T = TypeVar("T")
Endpoint = tuple[str, int]
_OWN_FDS = Path("/proc/self/fd")
_LISTEN = "0A"
_FIELDS_TO_INODE = 10


def listening_ports() -> dict[int, int]:
    """TCP ports on which this process listens now, by the inode of the socket."""
    own = set()
    for entry in _OWN_FDS.iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # closed since the listing
            continue
        if target.startswith("socket:["):
            own.add(int(target[8:-1]))
    ports = {}
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            inode = int(words[_FIELDS_TO_INODE - 1])
            if words[3] == _LISTEN and inode in own:
                ports[inode] = int(words[1].rsplit(":", 1)[1], 16)
    return ports


def port_opened_by(create: Callable[[], T], tries: int = 20) -> tuple[T, int]:
    """What ``create`` returns and the port of the one listener that it opened.

    Another thread may start to listen at the same moment; then the result is dropped and the call repeated.

    Raises:
        RuntimeError: no call opened exactly one listener; nothing is left open.
    """
    for _ in range(tries):
        before = listening_ports()
        made = create()
        opened = [port for inode, port in listening_ports().items() if inode not in before]
        if len(opened) == 1:
            return made, opened[0]
        del made
    raise RuntimeError(f"expected a new gloo device to open one listening socket, {tries} tries did not")


def cut(peers: AbstractSet[Endpoint], own_ports: AbstractSet[int] = frozenset()) -> int:
    """Shut down every connected TCP socket that ends at one of the peers' endpoints or at one of our listeners.

    Returns how many were shut down. Safe to call from any thread and more than once.
    """
    count = 0
    for entry in _OWN_FDS.iterdir():
        try:
            twin = os.dup(int(entry.name))
        except OSError:  # closed since the listing
            continue
        try:
            count += _cut_one(twin, own_ports, peers)
        finally:
            os.close(twin)
    return count


def _cut_one(fd: int, own_ports: AbstractSet[int], peers: AbstractSet[Endpoint]) -> int:
    try:
        view = socket.socket(fileno=fd)
    except OSError:  # no socket
        return 0
    try:
        if view.family not in (socket.AF_INET, socket.AF_INET6) or view.type != socket.SOCK_STREAM:
            return 0
        remote = view.getpeername()  # raises for a listener, which is thereby spared
        if view.getsockname()[1] in own_ports or (_plain(remote[0]), remote[1]) in peers:
            view.shutdown(socket.SHUT_RDWR)
            return 1
    except OSError:
        pass
    finally:
        view.detach()
    return 0


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:")
