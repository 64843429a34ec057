"""One connection to a replica: a request goes out, and its answer is told as it comes."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

import httptools

from closeranks.serve.http.head import Headers, end_to_end, first, lines_of, objection, with_length
from closeranks.serve.http.known import KnownHeads

if TYPE_CHECKING:
    from closeranks.serve.http.pool import Pool

HEAD_BYTES_MAX: Final = 64 * 1024
_CONTINUE, _SWITCHING, _OK = 100, 101, 200
_NO_BODY: Final = frozenset({204, 304})


class Cut(StrEnum):
    """How an answer ended that is not complete."""

    REFUSED = "refused"  # no connection: nothing was sent
    STALE = "stale"  # a kept connection was closed before a byte of the answer came
    RESET = "reset"  # closed before the answer was complete
    BAD_BYTES = "bad bytes"  # not HTTP
    SILENT = "silent"  # nothing came for too long
    GONE = "gone"  # nobody waits for it any more


class KnownAnswer(NamedTuple):
    """A head of an answer that was seen before, on a connection that is kept."""

    status: int
    headers: Headers
    lines: bytes  # those that go on to the client
    streamed: bool  # its body is one of events


class Answer(Protocol):
    """Who hears of an answer. After ``on_end``, ``on_whole`` or ``on_cut`` nothing follows."""

    def on_head(self, status: int, headers: Headers) -> None:
        """Status and all headers."""

    def on_data(self, data: bytes) -> None:
        """Some of the body, without its transfer coding."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_whole(self, known: KnownAnswer, headers: Headers, body: bytes) -> None:
        """An answer that came in one reading, with a head that is known but for its length: all of the above."""
        self.on_head(known.status, headers)
        if body:
            self.on_data(body)
        self.on_end()

    def on_cut(self, cut: Cut, detail: str) -> None:
        """The answer will never be complete."""


def streams_events(headers: Headers) -> bool:
    """Whether the body of such an answer consists of events."""
    return (first(headers, b"content-type") or b"").startswith(b"text/event-stream")


class UpstreamConnection(asyncio.Protocol):
    """HTTP/1.1 towards a replica; one request at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._answer: Answer | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._fresh = True
        self._heard = False
        self._headers: Headers = []
        self._head_bytes = 0
        self._data: list[bytes] = []
        self._until_close = False
        self._headed = False
        self._head_only = False
        self._complete = False
        self._keep = False
        self._known: KnownHeads[KnownAnswer] = KnownHeads()
        self._between = True  # the parser waits for the first byte of a head

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast("asyncio.Transport", transport)

    def request(self, data: bytes, answer: Answer, *, head_only: bool = False) -> None:
        """Send a whole request; its answer is told to ``answer``, and without a body if it is to be its head only."""
        self._answer, self._head_only = answer, head_only
        self._heard = self._headed = self._until_close = self._complete = False
        self.transport.write(data)

    def cancel(self) -> None:
        """Nobody waits any more: the replica hears of it by the end of the connection."""
        self._answer = None
        self._pool.forget(self)
        self.transport.abort()

    def pause(self) -> None:
        """Take nothing more until ``resume``."""
        self.transport.pause_reading()

    def resume(self) -> None:
        """Take data again."""
        self.transport.resume_reading()

    # --- transport --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse, and tell all of one reading at once."""
        if self._answer is None:  # an idle connection has nothing to say
            self.cancel()
            return
        self._heard = True
        between = self._between and not self._head_only
        if between:
            known = self._known.find(data)
            if known is not None:
                self._read_again(data, known)
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._cut(Cut.BAD_BYTES, f"expected an answer in HTTP/1.1, got {error}")
            return
        joined = b""
        if self._data:
            joined = self._data[0] if len(self._data) == 1 else b"".join(self._data)
            self._data.clear()
            if self._answer is not None:
                self._answer.on_data(joined)
        if self._complete:
            if between:
                self._learn(data, len(joined))
            self._end()

    def _read_again(self, data: bytes, found: tuple[KnownAnswer, bytes, int]) -> None:
        """Tell a whole answer whose head is known."""
        known, digits, body_at = found
        answer, self._answer, self._fresh = self._answer, None, False
        self._put_back(keep=True)
        if answer is not None:
            answer.on_whole(known, with_length(known.headers, digits) if digits else known.headers, data[body_at:])

    def _learn(self, data: bytes, body_bytes: int) -> None:
        """Remember a head after which the connection is kept."""
        headers = self._headers
        if self._keep and not self._until_close and first(headers, b"content-length") is not None:
            known = KnownAnswer(
                self._parser.get_status_code(), headers, lines_of(end_to_end(headers)), streams_events(headers)
            )
            self._known.learn(data, body_bytes, known)

    def connection_lost(self, exc: Exception | None) -> None:
        """The replica closed, or the network did."""
        self._pool.forget(self)
        if self._answer is None:
            return
        if self._headed and self._until_close and exc is None:
            self._end()
        elif not self._heard and not self._fresh:
            self._cut(Cut.STALE, "a kept connection was closed")
        else:
            self._cut(Cut.RESET, str(exc) if exc else "the connection was closed before the answer was complete")

    # --- the parser -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A new head."""
        self._headers, self._head_bytes, self._between = [], 0, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes <= HEAD_BYTES_MAX:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there."""
        status = self._parser.get_status_code()
        if _CONTINUE <= status < _OK or self._answer is None:
            return
        if self._head_bytes > HEAD_BYTES_MAX or objection(self._headers):
            self._cut(Cut.BAD_BYTES, objection(self._headers) or f"a head of more than {HEAD_BYTES_MAX} bytes")
            return
        self._headed = True
        framed = first(self._headers, b"content-length") or first(self._headers, b"transfer-encoding")
        self._until_close = framed is None and status not in _NO_BODY
        self._answer.on_head(status, self._headers)
        if self._head_only:
            self._complete = True

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._data.append(body)

    def on_message_complete(self) -> None:
        """The answer is complete, or it was one that only announces another."""
        self._between = True
        if self._headed:
            self._complete = True
            self._keep = self._parser.should_keep_alive()  # the parser forgets it with the next byte

    # --- endings ----------------------------------------------------------------------------------------------

    def _end(self) -> None:
        answer, self._answer = self._answer, None
        self._fresh = False
        self._put_back(keep=self._keep and not self._head_only and not self._until_close)
        if answer is not None:
            answer.on_end()

    def _put_back(self, *, keep: bool) -> None:
        if keep and not self.transport.is_closing():
            self._pool.give_back(self)
        else:
            self._pool.forget(self)
            self.transport.close()

    def _cut(self, cut: Cut, detail: str) -> None:
        answer, self._answer = self._answer, None
        self._pool.forget(self)
        self.transport.abort()
        if answer is not None:
            answer.on_cut(cut, detail)
