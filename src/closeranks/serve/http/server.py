"""One client's connection: bytes become requests, one after the other, and answers become bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, cast

import msgspec

from closeranks.serve.http.head import STATUS_LINES, Headers, Request, lines_of
from closeranks.serve.http.reading import Bounds, RequestReader

PIPELINED_MAX: Final = 8  # requests that wait behind the one that is being answered
_NO_BODY: Final = frozenset({204, 304})
_ERROR_TYPES: Final = {429: "rate_limit_exceeded", 401: "authentication_error", 403: "permission_error"}
_SERVER_ERROR: Final = 500


class Exchange(Protocol):
    """What answers one request. All calls come from the loop's thread."""

    def client_gone(self) -> None:
        """The client has left: stop the work at once."""

    def client_full(self) -> None:
        """The client takes nothing more for now."""

    def client_ready(self) -> None:
        """The client takes data again."""


class Front(Bounds, Protocol):
    """Where connections bring their requests."""

    connections: set[ClientConnection]

    def begin(self, request: Request, client: ClientConnection) -> Exchange | None:
        """Start to answer; None when the answer was already given in full."""


class ClientConnection(RequestReader):
    """HTTP/1.1 towards a client; keep-alive and pipelining, one answer at a time."""

    def __init__(self, front: Front) -> None:
        super().__init__(front)
        self._front: Front = front
        self._exchange: Exchange | None = None
        self._waiting: deque[Request] = deque()
        self._chunked = False
        self.started = False  # the head of the answer is out: from then on its status cannot be changed
        self._closing = False
        self._full = self._paused = False
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

    # --- requests ---------------------------------------------------------------------------------------------

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
