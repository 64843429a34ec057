"""What stands between a replica's stream and the client, if a stream is to survive its replica."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """The request that continues a cut answer on another replica."""

    target: bytes
    body: bytes
    exactness: str  # as the response header says it


class NoResume(msgspec.Struct, frozen=True, kw_only=True):
    """The answer cannot be continued."""

    reason: str


class Relay(Protocol):
    """Sees every byte of a streamed answer, whichever replica it comes from. Pure: no clock, no socket."""

    def begin(self, target: bytes, engine: str) -> None:
        """A replica begins (or continues) to answer; what comes next is its first byte."""

    def feed(self, data: bytes, now_s: float) -> bytes:
        """What the client gets of this; empty while an event is not complete, or was seen before."""

    @property
    def complete(self) -> bool:
        """Whether the stream has reached its proper end."""

    @property
    def broken(self) -> str:
        """Why the stream cannot go on from this replica although its connection lives (an error frame, bad bytes)."""

    def allowed_silence_s(self, now_s: float) -> float:
        """How long the replica may be silent from now on, by the stream's own learned pace."""

    def resume(self, engine: str) -> Resume | NoResume:
        """How another replica of this engine continues what the client has seen."""

    def fail(self, reason: str) -> bytes:
        """What the client is told when nobody can continue: an error event."""
