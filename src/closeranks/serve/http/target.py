"""Where a replica listens. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec


class Target(msgspec.Struct, frozen=True):
    """Where a replica listens."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""  # of every path

    @staticmethod
    def of(url: str) -> Target:
        """The parts of ``http://host:port/prefix``.

        Raises:
            ValueError: it is not such an address.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"expected http://HOST:PORT or https://HOST:PORT, got {url!r}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return Target(parts.hostname, port, parts.scheme == "https", parts.path.rstrip("/"))

    @property
    def authority(self) -> bytes:
        """What the host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode()
