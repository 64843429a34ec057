"""Under which address other nodes reach this one."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from closeranks.nodes.words import Address

_SIOCGIFCONF: Final = 0x8912
_REQUEST: Final = struct.Struct("iL")  # struct ifconf: length and pointer
_ROW_BYTES: Final = 40  # struct ifreq on 64-bit Linux: a name of 16 bytes, then a sockaddr_in
_ROWS_MAX: Final = 1024
_INET6 = Path("/proc/net/if_inet6")


class InterfaceProblem(Exception):
    """This node has no address of use; says which it has."""


class NameUnresolved(InterfaceProblem):
    """The name of the coordinator has no address, or none yet."""


class Interface(NamedTuple):
    """One address of an interface; an interface may have several."""

    name: str
    address: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.name} ({self.address})"


def own_address(coordinator: Address, interface: str = "") -> str:
    """The address of this node for the others: of the interface if one is named, else on the way to the coordinator.

    ``interface``: a name such as ``ib0``, or an address of this node.

    Raises:
        InterfaceProblem: there is no such interface, or no way to the coordinator; lists what there is.
        NameUnresolved: its name has no address.
    """
    if interface:
        return _of_interface(interface, prefer_v6=":" in coordinator.host)
    return _towards(coordinator)


def interfaces() -> tuple[Interface, ...]:
    """Addresses of this node that others may use: no link-local ones, which need to know the interface as well."""
    return tuple(i for i in (*_inet(), *_inet6()) if not ipaddress.ip_address(i.address).is_link_local)


def _of_interface(wanted: str, *, prefer_v6: bool) -> str:
    here = interfaces()
    found = [i.address for i in here if wanted in (i.name, i.address)]
    if not found:
        raise InterfaceProblem(f"--interface {wanted}: expected one of {_listed(here)}")
    return min(found, key=lambda address: (":" in address) != prefer_v6)  # the first of the preferred family


def _towards(coordinator: Address) -> str:
    problems: list[str] = []
    try:
        ways = socket.getaddrinfo(coordinator.host, coordinator.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise NameUnresolved(
            f"coordinator {coordinator}: its name cannot be resolved ({error}); give an address, "
            "or a name that every node knows"
        ) from error
    for family, kind, protocol, _, address in ways:
        with socket.socket(family, kind, protocol) as sock:
            try:
                sock.connect(address)  # no packet leaves: the kernel looks for a route and picks the source address
            except OSError as error:
                problems.append(f"{address[0]}: {error.strerror or error}")
                continue
            return str(sock.getsockname()[0])
    raise InterfaceProblem(
        f"coordinator {coordinator}: no route ({'; '.join(problems)}); name the interface on which it can be reached "
        f"by --interface: {_listed(interfaces())}"
    )


def _inet() -> list[Interface]:
    rows = array.array("B", bytes(_ROWS_MAX * _ROW_BYTES))
    pointer, size_bytes = rows.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFCONF, _REQUEST.pack(size_bytes, pointer))
    used_bytes, _ = _REQUEST.unpack(answer)
    data = rows.tobytes()
    return [
        Interface(data[at : at + 16].split(b"\0")[0].decode(), socket.inet_ntoa(data[at + 20 : at + 24]))
        for at in range(0, used_bytes, _ROW_BYTES)
    ]


def _inet6() -> list[Interface]:
    try:
        lines = _INET6.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:  # the kernel has no IPv6
        return []
    fields = [line.split() for line in lines]
    return [Interface(row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0])))) for row in fields]


def _listed(here: tuple[Interface, ...]) -> str:
    return ", ".join(str(i) for i in here) or "none: this machine has no address"
