"""One client's connection: bytes become requests, one after the other, and answers become bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools
import msgspec

from closeranks.serve.http.head import STATUS_LINES, Headers, Request, first, lines_of, objection, with_length
from closeranks.serve.http.known import KnownHeads
from closeranks.serve.http.limits import Limits

PIPELINED_MAX: Final = 8  # requests that wait behind the one that is being answered
_NO_BODY: Final = frozenset({204, 304})
_ERROR_TYPES: Final = {429: "rate_limit_exceeded", 401: "authentication_error", 403: "permission_error"}
_SERVER_ERROR: Final = 500
_SPECIAL: Final = frozenset({b"expect", b"transfer-encoding", b"upgrade"})  # to be looked at each time


class Exchange(Protocol):
    """What answers one request. All calls come from the loop's thread."""

    def client_gone(self) -> None:
        """The client has left: stop the work at once."""

    def client_full(self) -> None:
        """The client takes nothing more for now."""

    def client_ready(self) -> None:
        """The client takes data again."""


class Front(Protocol):
    """Where connections bring their requests."""

    limits: Limits
    connections: set[ClientConnection]

    @property
    def now_s(self) -> Callable[[], float]:
        """Tells the loop's time."""

    def begin(self, request: Request, client: ClientConnection) -> Exchange | None:
        """Start to answer; None when the answer was already given in full."""


class ClientConnection(asyncio.Protocol):
    """HTTP/1.1 towards a client; keep-alive and pipelining, one answer at a time."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.peer = ""
        self._exchange: Exchange | None = None
        self._waiting: deque[Request] = deque()
        self._request: Request | None = None  # the one that is being answered
        self._headers: Headers = []
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._target = b""
        self._refused = False
        self._known: KnownHeads[Request] = KnownHeads()
        self._known_under = front.limits
        self._between = True  # the parser waits for the first byte of a head
        self._read: list[Request] = []  # what the parser has found in one reading
        self._chunked = False
        self.started = False  # the head of the answer is out: from then on its status cannot be changed
        self._closing = False
        self._full = self._paused = False
        self.expires_s = front.now_s() + front.limits.header_s  # looked at by ``Sweeper``
        self._draining = False
        self.sent_bytes = 0  # of the body of the answer
        self._head = b""  # of the answer, until there is something to send with it

    # --- transport --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to listen."""
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else "unix"
        if len(self._front.connections) >= self._front.limits.connections:
            self._refuse(503, "too many connections")
            return
        self._front.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone; what was being done for it ends."""
        del exc
        self._front.connections.discard(self)
        self._waiting.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

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
        limits, (known, digits, body_at) = self._front.limits, found
        if limits is not self._known_under:  # read again from the file meanwhile
            self._known, self._known_under = KnownHeads(), limits
            return False
        if len(data) - body_at > limits.body_bytes:
            return False
        headers, body = with_length(known.headers, digits) if digits else known.headers, data[body_at:]
        request = Request(known.method, known.target, headers, body, True, True, self.peer, known.notes)
        if self._request is None:
            self._begin(request)
        else:
            self._complete(request)
        return True

    def _learn(self, data: bytes, request: Request) -> None:
        """Remember a head that asks for nothing more."""
        plain = request.keep_alive and request.chunked_allowed and not self._refused
        if plain and not any(name in _SPECIAL for name, _ in request.headers):
            self._known.learn(data, len(request.body), msgspec.structs.replace(request, body=b""))

    def pause_writing(self) -> None:
        """The client's buffer is full."""
        self._full = True
        self.expires_s = self._front.now_s() + self._front.limits.write_stall_s
        if self._exchange is not None:
            self._exchange.client_full()

    def resume_writing(self) -> None:
        """The client's buffer has room."""
        self._full = False
        self.expires_s = float("inf")
        if self._request is None:
            self._header_bytes, self.expires_s = 0, self._front.now_s() + self._front.limits.idle_s
        if self._exchange is not None:
            self._exchange.client_ready()

    # --- the parser -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A new head."""
        self._between = False
        self._headers, self._body, self._target = [], [], b""
        self._header_bytes = self._body_bytes = 0
        if self._request is None:
            self.expires_s = self._front.now_s() + self._front.limits.header_s

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._target += url
        self._header_bytes += len(url)
        if self._header_bytes > self._front.limits.header_bytes:
            self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name.lower(), value))
        self._header_bytes += len(name) + len(value) + 4
        limits = self._front.limits
        if self._header_bytes > limits.header_bytes or len(self._headers) > limits.headers:
            self._head_too_large()

    def _head_too_large(self) -> None:
        limits = self._front.limits
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
        if int(first(self._headers, b"content-length") or 0) > self._front.limits.body_bytes:
            self._too_large()
            return
        if self._request is None:
            self.expires_s = self._front.now_s() + self._front.limits.body_s
        if self._request is None and first(self._headers, b"expect") is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._front.limits.body_bytes:
            self._too_large()
        elif not self._refused:
            self._body.append(body)

    def _too_large(self) -> None:
        self._refuse(413, f"a body may have {self._front.limits.body_bytes} bytes")

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

    def _complete(self, request: Request) -> None:
        if self._request is None:
            self._begin(request)
        elif len(self._waiting) >= PIPELINED_MAX:
            self._refuse(400, f"more than {PIPELINED_MAX} requests in advance")
        else:
            self._waiting.append(request)
            self._paused = True
            self.transport.pause_reading()

    def _begin(self, request: Request) -> None:
        self._request, self.started = request, False
        self.expires_s = float("inf")
        exchange = self._front.begin(request, self)
        if self._request is request:  # else it was answered at once
            self._exchange = exchange

    # --- answers ----------------------------------------------------------------------------------------------

    def start(self, status: int, lines: bytes, length: int | None) -> None:
        """Send the head; ``lines`` of headers, see ``lines_of``.

        ``length`` of the body in bytes; None when it is not known before its end.
        """
        request = self._request
        if request is None:
            return
        self.sent_bytes = 0
        self._chunked = False
        framing = b""
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        elif status in _NO_BODY or request.method == b"HEAD":
            pass
        elif request.chunked_allowed:
            self._chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        else:
            request.keep_alive = False  # its end is that of the connection
        self._lead(request, status, lines, framing)
        if length is None:  # it may be long until there is something to send with it
            asyncio.get_running_loop().call_soon(self._flush)

    def _lead(self, request: Request, status: int, lines: bytes, framing: bytes) -> None:
        """Put the head together."""
        self.started = True
        self._closing = self._draining or not request.keep_alive
        if self._closing:
            framing += b"connection: close\r\n"
        elif not request.chunked_allowed:
            framing += b"connection: keep-alive\r\n"
        self._head = b"%b%b%b\r\n" % (STATUS_LINES[status], lines, framing)

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self.transport.is_closing():
            self.transport.write(head)

    def send(self, data: bytes) -> None:
        """A part of the body, written at once."""
        if self._request is None or not data or self._request.method == b"HEAD":
            return
        self.sent_bytes += len(data)
        head, self._head = self._head, b""  # with the data: one packet, and one call
        self.transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data) if self._chunked else head + data)

    def finish(self) -> None:
        """The answer is complete; the next request begins."""
        if self._request is None:
            return
        self._flush()
        if self._chunked:
            self.transport.write(b"0\r\n\r\n")
        self._end()

    def _end(self) -> None:
        self._request = self._exchange = None
        if self._closing:
            self.transport.close()
            return
        if self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._header_bytes, self.expires_s = 0, self._front.now_s() + self._front.limits.idle_s
            if self._paused:
                self._paused = False
                self.transport.resume_reading()

    def give(self, status: int, lines: bytes, body: bytes) -> None:
        """A whole answer, in one write; ``lines`` of headers, see ``lines_of``."""
        request = self._request
        if request is None:
            return
        self._lead(request, status, lines, b"content-length: %d\r\n" % len(body))
        self.transport.write(self._head if request.method == b"HEAD" else self._head + body)
        self._head = b""
        self._end()

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer."""
        self.give(status, lines_of(headers), body)

    def fail(self, status: int, message: str, headers: Headers | None = None) -> None:
        """A whole answer that says what went wrong, in the form that clients of the OpenAI API know."""
        self.answer(status, [(b"content-type", b"application/json"), *(headers or [])], error_body(status, message))

    def abort(self) -> None:
        """Cut the connection: the only way to say that an answer is not complete once its head is out."""
        self._request = self._exchange = None
        self.transport.abort()

    def drain(self) -> None:
        """Close as soon as nothing is being answered."""
        self._draining = True
        if self._request is None and self.transport is not None:
            self.transport.close()

    def expire(self) -> None:
        """The client took too long."""
        if self._full or self._request is not None:
            self.transport.abort()
        elif self._header_bytes:
            self._refuse(408, "the request did not arrive in time")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close. What is being answered is cut: this connection's bytes cannot be trusted any more."""
        if self._refused:
            return
        self._refused = True
        if self._request is None:
            body = error_body(status, message)
            head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            lines = lines_of([*head, (b"connection", b"close")])
            self.transport.write(b"%b%b\r\n%b" % (STATUS_LINES[status], lines, body))
            self.transport.close()
        else:
            self.transport.abort()


def error_body(status: int, message: str) -> bytes:
    """The JSON of an error, in the form that clients of the OpenAI API know."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= _SERVER_ERROR else "invalid_request_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})
