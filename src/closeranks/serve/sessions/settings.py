"""``[sessions]``: whether streams outlive their gateway, and what an engine knows of a session its replica. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from closeranks.serve.policies.bounds import positive, within


class Keep(StrEnum):
    """How much of a stream may be lost with its gateway."""

    NOTHING = "nothing"  # a client that comes back asks anew
    CHECKPOINT = "checkpoint"  # kept a moment after it was sent: what was not kept yet is generated once more
    MIRROR = "mirror"  # kept before it is sent: nothing is generated twice, and every token waits for the store


class Kv(StrEnum):
    """What becomes of the KV cache that an engine has built up for a session."""

    NONE = "none"  # it is the engine's own affair: a session that moves has its earlier turns computed again
    SNAPSHOT = "snapshot"  # saved after each answer, and restored where the session goes on


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[sessions.snapshots]``: bounds of ``kv = "snapshot"``."""

    folder: str = ""  # where llama.cpp has its --slot-save-path, as this process sees it; empty: not reachable
    count: int = 64  # sessions of which a snapshot is kept, at most
    size_bytes: int = 8 * 2**30  # of all of them together, at most
    restore_s: float = 1.0  # a session waits so long for its snapshot, then goes on without
    save_s: float = 10.0
    pause_s: float = 0.05  # a save that holds up a replica's other streams for longer waits until it has none

    def __post_init__(self) -> None:
        positive(self, "restore_s", "save_s", "size_bytes")
        within(self, 1, 1e5, "count")
        within(self, 0, 1e3, "pause_s")


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Streams get ids and can be continued with ``Last-Event-ID`` unless ``keep`` is "nothing"."""

    keep: Keep = Keep.NOTHING
    store: str = "memory"  # "memory", "file:FOLDER" or "redis://HOST:PORT/0"
    keep_s: float = 600.0  # after the last event
    batch_events: int = 16  # kept together, with "checkpoint"
    batch_s: float = 0.05
    kv: Kv = Kv.NONE
    snapshots: SnapshotSettings = SnapshotSettings()

    def __post_init__(self) -> None:
        if not (self.store == "memory" or self.store.startswith(("file:", "redis://", "rediss://", "unix://"))):
            raise ValueError(f'store: expected "memory", "file:FOLDER" or "redis://HOST:PORT/0", got {self.store!r}')
        if not (self.keep_s > 0 and self.batch_events > 0 and self.batch_s > 0):
            raise ValueError("keep_s, batch_events and batch_s: expected more than 0")
