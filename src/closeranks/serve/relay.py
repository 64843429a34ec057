"""What stands between a replica's stream and the client, if a stream is to survive its replica."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec


class Exactness(StrEnum):
    """What a continuation can promise; ``x-closeranks-resume`` of the response says it."""

    RESTORED = "restored-kv"  # of a session that goes on elsewhere: what the engine knew of it was moved along
    INVARIANT = "invariant-replay"  # the same tokens are replayed on arithmetic that does not depend on the batch
    VERIFIED = "verified-regeneration"  # generated anew, and compared with all that the client has seen
    BEST_EFFORT = "best-effort"  # continued from the same text or tokens; later tokens may differ
    NONE = "none"  # a cut answer fails


class Prepare(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the replica before the answer can be continued there; its answer goes to ``Relay.prepared``."""

    target: bytes
    body: bytes


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """The request that continues a cut answer."""

    target: bytes
    body: bytes
    exactness: Exactness


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is missing but the end itself, which is this."""

    data: bytes


class NoResume(msgspec.Struct, frozen=True, kw_only=True):
    """The answer cannot be continued."""

    reason: str


Plan = Prepare | Resume | Finished | NoResume


class Relay(Protocol):
    """Sees every byte of a streamed answer, whichever replica it comes from. Pure: no clock, no socket.

    The order of calls: ``plan`` and, after each ``Prepare``, ``prepared``; then ``begin``; then ``feed`` until the
    stream is ``complete`` or ``broken``, or its connection is cut; then ``plan`` again for the next replica.
    """

    def plan(self, engine: str) -> Plan:
        """What to send to a replica of this engine: at first the request itself, later what continues its answer."""

    def prepared(self, answer: bytes) -> None:
        """What the replica answered to the last ``Prepare``; empty if it failed."""

    def ahead(self, engine: str) -> Prepare | None:
        """A question that saves time if the stream is cut later; asked once it has lasted for a while."""

    def prepared_ahead(self, answer: bytes) -> None:
        """What the replica answered to ``ahead``."""

    def begin(self) -> None:
        """The request of the last plan was sent."""

    def feed(self, data: bytes, now_s: float) -> bytes:
        """What the client gets of this; empty while an event is not complete, or was seen before."""

    @property
    def complete(self) -> bool:
        """Whether the answer has all its parts; perhaps its end mark is missing."""

    @property
    def broken(self) -> str:
        """Why the stream cannot go on from this replica although its connection lives (an error frame, bad bytes)."""

    def finale(self) -> bytes:
        """The end mark, unless the client has it."""

    @property
    def exactness(self) -> Exactness:
        """What a continuation can promise."""

    def allowed_silence_s(self) -> float | None:
        """How long the replica may be silent after its last byte, by the stream's own learned pace.

        None before its first token: then nothing is known but how long a prompt may take.
        """

    def fail(self, reason: str) -> bytes:
        """What the client is told when nobody can continue: an error event."""
