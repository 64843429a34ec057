"""Heads of HTTP/1.1 messages: what may pass a proxy, what has to be refused, and their bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

Headers = list[tuple[bytes, bytes]]  # names in lower case, in the order in which they came

# Of one connection only (RFC 9110, 7.6.1). Lengths are set anew by whoever writes the next hop's head.
HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade", b"content-length"}
)
_USUAL: Final = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})  # values that name no header
_REASONS: Final = {
    200: b"OK",
    202: b"Accepted",
    204: b"No Content",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}


class _StatusLines(dict[int, bytes]):
    def __missing__(self, status: int) -> bytes:
        return b"HTTP/1.1 %d Status\r\n" % status


STATUS_LINES: Final = _StatusLines(
    {status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in _REASONS.items()}
)
"""The first line of an answer, by its status."""


class Request(msgspec.Struct):
    """A whole request of a client. ``target`` is the path with its query, as it was written."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes = b""
    keep_alive: bool = True
    chunked_allowed: bool = True  # False: HTTP/1.0
    client: str = ""  # address
    notes: dict[object, Any] = {}  # what others have found out about this head, by who has; kept while it comes again

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header."""
        return first(self.headers, name)

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]


def first(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header; the name in lower case."""
    for known, value in headers:
        if known == name:
            return value
    return None


WITH_BODY: Final = frozenset({b"POST", b"PUT", b"PATCH"})


def with_length(headers: Headers, digits: bytes) -> Headers:
    """The headers of a message that differs from another one in the length of its body only."""
    for place, (name, _) in enumerate(headers):
        if name == b"content-length":
            return [*headers[:place], (name, digits), *headers[place + 1 :]]
    return headers


_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"host"})


def objection(headers: Headers) -> str:
    """Why the length of a message is in doubt, so that two parsers could see two requests; empty if it is not.

    Source: RFC 9112, 6.3 (message body length) and 11.2 (request smuggling).
    """
    length: bytes | None = None
    coded = hosted = False
    for name, value in headers:
        if name not in _FRAMING:
            continue
        if name == b"content-length":
            if length is not None or not value.strip().isdigit():
                return "expected one content-length of digits"
            length = value
        elif name == b"host":
            if hosted:
                return "expected one host"
            hosted = True
        elif coded or value.strip().lower() != b"chunked":
            return "expected no transfer-encoding but chunked"
        else:
            coded = True
    return "content-length beside transfer-encoding" if coded and length is not None else ""


def end_to_end(headers: Headers) -> Headers:
    """The headers that go on to the next hop."""
    dropped = HOP_BY_HOP
    for name, value in headers:
        if name == b"connection" and value not in _USUAL:
            dropped |= {token.strip().lower() for token in value.split(b",")}
    return [header for header in headers if header[0] not in dropped]


def request_bytes(method: bytes, target: bytes, lines: bytes, body: bytes) -> bytes:
    """A whole request, with its length. ``lines`` are those of its headers, see ``lines_of``."""
    if body or method in WITH_BODY:
        return b"%b %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (method, target, lines, len(body), body)
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, lines)


def lines_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The lines of a head that say this."""
    lines: list[bytes] = []
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    return b"".join(lines)
