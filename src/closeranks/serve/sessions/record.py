"""What is kept of a stream so that any gateway can go on with it, and how its events are numbered. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

import msgspec

_EVENT_ID: Final = re.compile(r"([0-9a-f]{32})/(\d{1,9})\.(\d{1,9})")


class EventId(NamedTuple):
    """The ``id`` of an event: which stream, how many events so far, and how many characters of text in them.

    Two engines may cut the same text into other events. The characters tell exactly what a client has.
    """

    stream: str
    events: int
    characters: int

    def __str__(self) -> str:
        """As it is sent."""
        return f"{self.stream}/{self.events}.{self.characters}"

    @staticmethod
    def parse(text: str) -> EventId | None:
        """None for what is no id of ours."""
        match = _EVENT_ID.fullmatch(text.strip())
        return EventId(match[1], int(match[2]), int(match[3])) if match else None


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a stream."""

    stream: str  # 128 random bits, in hexadecimal: whoever knows it and is the owner may have the rest
    owner: str  # a digest of the credentials that asked
    target: bytes
    body: bytes


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One event as the client got it, and the ids of its tokens where they are known."""

    raw: bytes
    ids: tuple[int, ...] = ()


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that is ours from now on: what an older ``generation`` still appends is refused."""

    head: Head
    entries: tuple[Entry, ...]
    generation: int


_HEADS: Final = msgspec.msgpack.Decoder(Head)
_ENTRIES: Final = msgspec.msgpack.Decoder(list[Entry])


def encode_head(head: Head) -> bytes:
    """The bytes that a store keeps."""
    return msgspec.msgpack.encode(head)


def decode_head(data: bytes) -> Head:
    """The reverse.

    Raises:
        msgspec.DecodeError: the bytes are not of a head.
    """
    return _HEADS.decode(data)


def encode_entries(entries: list[Entry]) -> bytes:
    """The bytes that a store keeps of a batch."""
    return msgspec.msgpack.encode(entries)


def decode_entries(batches: list[bytes]) -> tuple[Entry, ...]:
    """The reverse, for all batches of a stream in their order.

    Raises:
        msgspec.DecodeError: the bytes are not of a batch.
    """
    return tuple(entry for batch in batches for entry in _ENTRIES.decode(batch))


def owner_of(credentials: bytes) -> str:
    """A name for whoever showed these credentials, from which they cannot be found."""
    return hashlib.blake2b(credentials, digest_size=16).hexdigest()
