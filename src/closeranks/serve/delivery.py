"""What the client of one request gets: a head, parts of a body, an end; or an error."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

import msgspec

from closeranks.serve.fallbacks import DEGRADED, LocalAnswer
from closeranks.serve.http.head import Headers, Request, end_to_end, lines_of
from closeranks.serve.relay import Relay
from closeranks.serve.sessions.keeper import Keeper
from closeranks.serve.story import Story
from closeranks.serve.stream.relay import CompletionsRelay
from closeranks.serve.words import Ask

if TYPE_CHECKING:
    from closeranks.serve.attempt import Attempt
    from closeranks.serve.gateway import Gateway
    from closeranks.serve.http.server import ClientConnection

_OK: Final = 200


class Delivery(msgspec.Struct, eq=False):
    """The client's side of an exchange: everything that a client sees of its request is said here.

    A Struct, as what inherits from it: one is made for each request, and this is the cheapest that Python has.
    """

    _gateway: Gateway
    _request: Request
    _client: ClientConnection
    ask: Ask
    story: Story
    relay: Relay | None = None
    _keeper: Keeper | None = None
    _degraded: str = ""  # the level of the ladder, if it is not the full service
    _forwarding: bool = False
    over: bool = False
    full: bool = False  # the client takes nothing more for now

    def _begin_to_forward(self, attempt: Attempt, length: int | None) -> None:
        """Send the head of an answer; ``length`` of the body, if it is known."""
        self._begun(attempt.status, self._lines(attempt), length)
        if self.full:
            attempt.pause()

    def _lines(self, attempt: Attempt) -> bytes:
        """Of the head that the client gets."""
        known = attempt.known
        lines = (lines_of(end_to_end(attempt.headers)) if known is None else known.lines) + attempt.replica.line
        if self.relay is not None:
            lines += b"x-closeranks-resume: %b\r\n" % self.relay.exactness.encode()
        if self._degraded or self.story.without:
            less = [self._degraded, *(f"without-{name}" for name in self.story.without)]
            lines += b"%b: %b\r\n" % (DEGRADED, ", ".join(filter(None, less)).encode())
        if self._gateway.snapshots is not None:
            lines += self._gateway.snapshots.line(attempt.replica, self.ask)
        if self._keeper is not None:
            lines += b"x-closeranks-stream: %b\r\n" % self._keeper.stream.encode()
        return lines

    def _begun(self, status: int, lines: bytes, length: int | None) -> None:
        self._forwarding = True
        story = self.story
        self._client.start(status, lines, length)
        story.status, story.first_byte_s = status, self._gateway.now_s() - story.began_s

    def _tell(self, data: bytes) -> None:
        """What a relay has for the client; by way of the store where the stream is kept."""
        if self._keeper is not None and isinstance(self.relay, CompletionsRelay):
            self._keeper.add(data, self.relay.taken())
        else:
            self._client.send(data)

    def _give(self, attempt: Attempt, body: bytes) -> None:
        """A whole answer of a replica."""
        story = self.story
        story.status, story.first_byte_s, story.whole = attempt.status, self._gateway.now_s() - story.began_s, True
        self._give_whole(attempt.status, self._lines(attempt), body)

    def _answer_locally(self, answer: LocalAnswer) -> None:
        self.story.status, self.story.whole = _OK, True
        self._give_whole(_OK, lines_of(answer.headers), answer.body)

    def _give_whole(self, status: int, lines: bytes, body: bytes) -> None:
        self.story.sent_bytes = len(body)
        self._close()  # before: the next request on the connection may begin with the last byte of this answer
        self._client.give(status, lines, body)

    def _give_up(self, status: int, reason: str, retry_after_s: float | None = None) -> None:
        """Nobody can answer, or answer further."""
        if not self._client.started:
            self.refuse(status, reason, retry_after_s)
            return
        self.story.error = reason
        if self.relay is not None and self._keeper is not None:
            self._keeper.add(self.relay.fail(reason), [])  # not kept: whoever comes back may have more luck
            self._finish()
        elif self.relay is not None:
            self._client.send(self.relay.fail(reason))
            self._finish()
        else:
            self._close()
            self._client.abort()

    def refuse(self, status: int, reason: str, retry_after_s: float | None = None) -> None:
        """Answer with an error, and nothing else."""
        if self.over:
            return
        self.story.status, self.story.error = status, reason
        headers: Headers = []
        if retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(retry_after_s))))
        self._close()
        self._client.fail(status, reason, headers)

    def _finish(self) -> None:
        self.story.whole = not self.story.error
        self._close()
        if self._keeper is None:
            self._client.finish()
        else:
            self._keeper.end(self._client.finish)

    @abstractmethod
    def _close(self) -> None:
        """The request is over; a second time it does nothing."""
