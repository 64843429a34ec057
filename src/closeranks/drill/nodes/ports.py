"""Which TCP ports processes listen on and are connected to, in whatever network namespace they are."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple

_ESTABLISHED: Final = "01"  # as /proc/net/tcp has them
_LISTEN: Final = "0A"


def listening(pids: list[int]) -> frozenset[int]:
    """Ports on which one of the processes listens."""
    return frozenset(row.here for row in _rows(pids) if row.state == _LISTEN)


def connected(pids: list[int]) -> frozenset[int]:
    """Ports at the other ends of their connections."""
    return frozenset(row.there for row in _rows(pids) if row.state == _ESTABLISHED)


def command_line(pid: int) -> str:
    """The words of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _sockets(pid: int) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed since
                found.append(str(entry.readlink()))
    return found


def _rows(pids: list[int]) -> list[_Row]:
    """The sockets of the processes."""
    return [row for pid in pids for held in [set(_sockets(pid))] for row in _tcp(pid) if row.socket in held]


class _Row(NamedTuple):
    here: int
    there: int
    state: str
    socket: str  # as the links of /proc/PID/fd name it


def _tcp(pid: int) -> list[_Row]:
    """The TCP sockets of the namespace of the process."""
    lines: list[str] = []
    for table in ("tcp", "tcp6"):  # IPv4 spoken by a socket for both is in the second
        with contextlib.suppress(OSError):
            lines += Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
    rows = [line.split() for line in lines]
    return [_Row(_port(row[1]), _port(row[2]), row[3], f"socket:[{row[9]}]") for row in rows]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
