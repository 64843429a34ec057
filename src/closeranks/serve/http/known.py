"""Heads that come again on one connection: read once by the parser, and known by their bytes from then on. Pure.

Over a kept connection a client or a replica sends nearly the same head each time; what differs is the length of the
body. The parser alone decides what a head means. What it has said of one holds for every message whose head has the
same bytes, but for the digits of its content-length, and whose body came whole in the same reading.

Source: the idea is HPACK's (RFC 7541, 1.1): a header list repeats the one before it on the same connection.
"""

from __future__ import annotations

import re
from typing import Final, Generic, TypeVar

HEADS_MAX: Final = 3
HEAD_BYTES_MAX: Final = 4096
"""Of a connection: ten thousand of them must not hold gigabytes of heads. Longer ones are parsed each time."""

VAIN_MAX: Final = 32  # new heads in a row, such as ones with a number of their own: after that no more are learned
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (\d{1,8})\r\n")
_END: Final = b"\r\n\r\n"
Meaning = TypeVar("Meaning")


class KnownHeads(Generic[Meaning]):
    """What the heads of one connection meant."""

    __slots__ = ("_forms", "_vain")

    def __init__(self) -> None:
        # The bytes before the digits of the length, these, and those after; nothing after: a head without a length.
        # And how many bytes there are without the digits and the body.
        self._forms: list[tuple[bytes, bytes, bytes, int, Meaning]] = []
        self._vain = 0  # heads in a row that were new

    def find(self, data: bytes) -> tuple[Meaning, bytes, int] | None:
        """What the head means, the digits of its length, and where the body begins.

        No digits: they are those that were learned. None: the head is not known, or this is not one whole message.
        """
        for before, learned, after, fixed, meaning in self._forms:
            if not data.startswith(before):
                continue
            room, width = len(data) - fixed, len(learned)
            digits = b"%d" % (room - width) if after else b""  # the only ones with which it is one whole message
            if len(digits) != width:
                width = len(digits)
                digits = b"%d" % (room - width)
                if len(digits) != width:
                    continue
            if data.startswith(digits + after, len(before)) and (after or not room):
                self._vain = 0
                return meaning, b"" if digits == learned else digits, fixed + width
        return None

    @property
    def hopeless(self) -> bool:
        """Whether no head on this connection is like another one: then learning them only takes time."""
        return self._vain > VAIN_MAX

    def learn(self, data: bytes, body_bytes: int, meaning: Meaning) -> bool:
        """The parser has read exactly one message in ``data``, with a body of so many bytes; whether it is kept."""
        body_at = data.find(_END) + len(_END)
        if body_at + body_bytes != len(data) or body_at > HEAD_BYTES_MAX or self.hopeless:
            return False
        match = _LENGTH.search(data, 0, body_at)
        if match is None and body_bytes:
            return False
        form = data[:body_at], b"", b"", body_at
        if match is not None:
            form = data[: match.start(1)], match[1], data[match.end(1) : body_at], body_at - len(match[1])
        self._vain += 1
        del self._forms[HEADS_MAX - 1 :]
        self._forms.insert(0, (*form, meaning))
        return True
