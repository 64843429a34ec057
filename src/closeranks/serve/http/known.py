"""Heads that come again on one connection: read once by the parser, and known by their bytes from then on. Pure.

Over a kept connection a client or a replica sends nearly the same head each time; what differs is the length of the
body. The parser alone decides what a head means. What it has said of one holds for every message whose head has the
same bytes, but for the digits of its content-length, and whose body came whole in the same reading.

Source: the idea is HPACK's (RFC 7541, 1.1): a header list repeats the one before it on the same connection.
"""

from __future__ import annotations

import re
from typing import Final, Generic, NamedTuple, TypeVar

HEADS_MAX: Final = 8
"""Of a connection. Whoever sends more, such as one with a number of its own in each head, gains nothing by them."""

VAIN_MAX: Final = 32

_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (\d{1,8})\r\n")
_END: Final = b"\r\n\r\n"
_Key = bytes | tuple[bytes, bytes]
Meaning = TypeVar("Meaning")


class Parts(NamedTuple):
    """A whole message: ``key`` is its head without the digits of its length."""

    key: _Key
    digits: bytes  # empty: the head names no length
    body_at: int


def parts_of(data: bytes) -> Parts | None:
    """The parts of a reading that is one whole message, if the length that its head seems to name is right."""
    body_at = data.find(_END) + len(_END)
    match = _LENGTH.search(data, 0, body_at)
    if match is None:
        return Parts(data, b"", body_at) if body_at == len(data) else None
    digits = match[1]
    if body_at + int(digits) != len(data):
        return None
    start, stop = match.span(1)
    # Two parts, not one: without its digits a head could look like another one that never had any.
    return Parts((data[:start], data[stop:body_at]), digits, body_at)


class KnownHeads(Generic[Meaning]):
    """What the heads of one connection meant."""

    __slots__ = ("_known", "_vain")

    def __init__(self) -> None:
        self._known: dict[_Key, Meaning] = {}
        self._vain = 0  # heads in a row that were new

    @property
    def hopeless(self) -> bool:
        """Whether no head here is like another one: then looking them up only takes time."""
        return self._vain > VAIN_MAX

    def get(self, parts: Parts) -> Meaning | None:
        """What this head means, if it is known."""
        meaning = self._known.get(parts.key)
        if meaning is not None:
            self._vain = 0
        return meaning

    def learn(self, parts: Parts, meaning: Meaning) -> None:
        """The parser has read exactly this message, and no more."""
        self._vain += 1
        if len(self._known) >= HEADS_MAX or self.hopeless:
            self._known.clear()
        if not self.hopeless:
            self._known[parts.key] = meaning
