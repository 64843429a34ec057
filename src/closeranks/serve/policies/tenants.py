"""Who asks, and what they may take. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, Literal

import msgspec

from closeranks.serve.policies.bounds import positive, within
from closeranks.serve.words import NEVER_S

_SHA256: Final = re.compile("[0-9a-fA-F]{64}")


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[tenant]]``. One with keys is known by its bearer token alone; one without by the tenant header."""

    name: str
    premium: bool = False
    keys_sha256: tuple[str, ...] = ()  # of its bearer tokens, in hexadecimal digits
    priority: Literal["interactive", "standard", "batch"] = "standard"  # unless a request says otherwise
    weight: float = 1.0  # its part of what its class gets
    per_s: float = NEVER_S  # requests
    burst: float = 0.0  # requests at once beyond that; 0: what one second allows, at least 1
    in_flight: float = NEVER_S  # requests

    def __post_init__(self) -> None:
        positive(self, "weight", "per_s", "in_flight")
        within(self, 0, NEVER_S, "burst")
        if any(not _SHA256.fullmatch(key) for key in self.keys_sha256):
            raise ValueError("keys_sha256: expected 64 hexadecimal digits each: what sha256sum prints of a key")


class Quota:
    """What one tenant has left: a bucket that fills with time."""

    def __init__(self, settings: TenantSettings) -> None:
        self.settings = settings
        self.in_flight = 0.0
        self._size = settings.burst or max(1.0, settings.per_s)
        self._left = self._size
        self._seen_s = 0.0

    def take(self, now_s: float, cost: float) -> float:
        """Take a request out of it; 0, or how long until there is room again, and then nothing was taken."""
        settings = self.settings
        if self.in_flight + cost > settings.in_flight:
            return 1.0
        if settings.per_s != NEVER_S:
            self._left = min(self._size, self._left + settings.per_s * (now_s - self._seen_s))
            self._seen_s = now_s
            cost_now = min(cost, self._size)  # what is larger than the bucket may pass when it is full
            if self._left < cost_now:
                return (cost_now - self._left) / settings.per_s
            self._left -= cost_now
        self.in_flight += cost
        return 0.0

    def give_back(self, cost: float) -> None:
        """A request is over."""
        self.in_flight = max(0.0, self.in_flight - cost)


class Tenants:
    """All that are declared. Everybody else is served with the defaults of ``TenantSettings``."""

    def __init__(self, settings: Sequence[TenantSettings]) -> None:
        self._by_name = {tenant.name: tenant for tenant in settings}
        self._nobody = TenantSettings(name="")
        self._by_key = {key.lower(): tenant for tenant in settings for key in tenant.keys_sha256}

    def of(self, headers: Iterable[tuple[bytes, bytes]], tenant_header: bytes) -> TenantSettings:
        """Who sends these headers. A token proves a tenant; a mere name proves none that has keys."""
        claimed = ""
        for name, value in headers:
            if name == b"authorization" and self._by_key and value[:7].lower() == b"bearer ":
                proven = self._by_key.get(sha256(value[7:].strip()).hexdigest())
                if proven is not None:
                    return proven
            elif name == tenant_header:
                claimed = value[:64].decode("latin-1").strip()
        known = self._by_name.get(claimed)
        if known is None or known.keys_sha256:
            # A name that is not declared, or not proven, gets no more than anybody; it still queues on its own.
            return TenantSettings(name=f"?{claimed}") if claimed else self._nobody
        return known


def seconds_up(wait_s: float) -> float:
    """A pause as ``Retry-After`` can say it: whole seconds, at least one."""
    return float(max(1, math.ceil(wait_s)))
