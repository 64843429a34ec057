"""What a client may take of the gateway. Pure."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may take. Times in seconds."""

    header_bytes: int = 32 * 1024
    headers: int = 100
    body_bytes: int = 16 * 2**20
    header_s: float = 10.0  # from the first byte of a head to its last
    body_s: float = 60.0  # from the head to the last byte of the body
    idle_s: float = 75.0  # between two requests
    write_stall_s: float = 60.0  # a client that takes nothing for so long is let go
    connections: int = 10_000
