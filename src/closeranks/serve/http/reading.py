"""One client's bytes become requests: parsed, bounded, and refused where their framing is in doubt."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools
import msgspec

from closeranks.serve.http.head import Headers, Request, first, objection, with_length
from closeranks.serve.http.known import KnownHeads
from closeranks.serve.http.limits import Limits

_SPECIAL: Final = frozenset({b"expect", b"transfer-encoding", b"upgrade"})  # to be looked at each time


class Bounds(Protocol):
    """What a reader is told by whoever listens."""

    limits: Limits

    @property
    def now_s(self) -> Callable[[], float]:
        """Tells the loop's time."""


class RequestReader(asyncio.Protocol):
    """The reading half of a client's connection."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.peer = ""
        self._request: Request | None = None  # the one that is being answered
        self._headers: Headers = []
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._target = b""
        self._refused = False
        self._known: KnownHeads[Request] = KnownHeads()
        self._known_under = bounds.limits
        self._between = True  # the parser waits for the first byte of a head
        self._read: list[Request] = []  # what the parser has found in one reading
        self.expires_s = bounds.now_s() + bounds.limits.header_s  # looked at by the gateway now and then

    def data_received(self, data: bytes) -> None:
        """Parse; a request that is complete begins."""
        if self._refused:
            return
        between = self._between
        if between:
            known = self._known.find(data)
            if known is not None and self._read_again(data, known):
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(501, "no protocol but HTTP/1.1 is spoken here")
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP/1.1: {error}")
        if between and self._between and len(self._read) == 1 and not self._known.hopeless:
            self._learn(data, self._read[0])
        self._read.clear()

    def _read_again(self, data: bytes, found: tuple[Request, bytes, int]) -> bool:
        """Take a request with a head that is known; False: it has to be parsed after all."""
        limits, (known, digits, body_at) = self._bounds.limits, found
        if limits is not self._known_under:  # read again from the file meanwhile
            self._known, self._known_under = KnownHeads(), limits
            return False
        if len(data) - body_at > limits.body_bytes:
            return False
        headers, body = with_length(known.headers, digits) if digits else known.headers, data[body_at:]
        request = Request(known.method, known.target, headers, body, True, True, self.peer, known.notes)
        self._complete(request)
        return True

    def _learn(self, data: bytes, request: Request) -> None:
        """Remember a head that asks for nothing more."""
        plain = request.keep_alive and request.chunked_allowed and not self._refused
        if plain and not any(name in _SPECIAL for name, _ in request.headers):
            self._known.learn(data, len(request.body), msgspec.structs.replace(request, body=b""))

    # --- the parser -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A new head."""
        self._between = False
        self._headers, self._body, self._target = [], [], b""
        self._header_bytes = self._body_bytes = 0
        if self._request is None:
            self.expires_s = self._bounds.now_s() + self._bounds.limits.header_s

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._target += url
        self._header_bytes += len(url)
        if self._header_bytes > self._bounds.limits.header_bytes:
            self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name.lower(), value))
        self._header_bytes += len(name) + len(value) + 4
        limits = self._bounds.limits
        if self._header_bytes > limits.header_bytes or len(self._headers) > limits.headers:
            self._head_too_large()

    def _head_too_large(self) -> None:
        limits = self._bounds.limits
        self._refuse(431, f"a head may have {limits.headers} fields and {limits.header_bytes} bytes")

    def on_headers_complete(self) -> None:
        """The head is there: refuse what has a doubtful or too great length."""
        if self._refused:
            return
        if self._parser.should_upgrade():
            self._refuse(501, "no protocol but HTTP/1.1 is spoken here")
            return
        if doubt := objection(self._headers):
            self._refuse(400, doubt)
            return
        if int(first(self._headers, b"content-length") or 0) > self._bounds.limits.body_bytes:
            self._too_large()
            return
        if self._request is None:
            self.expires_s = self._bounds.now_s() + self._bounds.limits.body_s
        if self._request is None and first(self._headers, b"expect") is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._bounds.limits.body_bytes:
            self._too_large()
        elif not self._refused:
            self._body.append(body)

    def _too_large(self) -> None:
        self._refuse(413, f"a body may have {self._bounds.limits.body_bytes} bytes")

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._between = True
        if self._refused:
            return
        request = Request(
            method=self._parser.get_method(),
            target=self._target,
            headers=self._headers,
            body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
            keep_alive=self._parser.should_keep_alive(),
            chunked_allowed=self._parser.get_http_version() != "1.0",
            client=self.peer,
        )
        self._read.append(request)
        self._complete(request)

    @abstractmethod
    def _complete(self, request: Request) -> None:
        """A request is there."""

    @abstractmethod
    def _refuse(self, status: int, message: str) -> None:
        """Answer and close: nothing that follows can be trusted."""
