"""``[sessions]``: whether streams outlive their gateway, and where. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Keep(StrEnum):
    """How much of a stream may be lost with its gateway."""

    NOTHING = "nothing"  # a client that comes back asks anew
    CHECKPOINT = "checkpoint"  # kept a moment after it was sent: what was not kept yet is generated once more
    MIRROR = "mirror"  # kept before it is sent: nothing is generated twice, and every token waits for the store


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Streams get ids and can be continued with ``Last-Event-ID`` unless ``keep`` is "nothing"."""

    keep: Keep = Keep.NOTHING
    store: str = "memory"  # "memory", "file:FOLDER" or "redis://HOST:PORT/0"
    keep_s: float = 600.0  # after the last event
    batch_events: int = 16  # kept together, with "checkpoint"
    batch_s: float = 0.05

    def __post_init__(self) -> None:
        if not (self.store == "memory" or self.store.startswith(("file:", "redis://", "rediss://", "unix://"))):
            raise ValueError(f'store: expected "memory", "file:FOLDER" or "redis://HOST:PORT/0", got {self.store!r}')
        if not (self.keep_s > 0 and self.batch_events > 0 and self.batch_s > 0):
            raise ValueError("keep_s, batch_events and batch_s: expected more than 0")
