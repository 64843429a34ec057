"""What the client of one request gets: a head, parts of a body, an end; or an error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from closeranks.serve.fallbacks import DEGRADED, LocalAnswer
from closeranks.serve.http.head import Headers, Request, end_to_end, lines_of
from closeranks.serve.relay import Relay
from closeranks.serve.sessions.keeper import Keeper
from closeranks.serve.stream.relay import CompletionsRelay
from closeranks.serve.words import Ask

if TYPE_CHECKING:
    from closeranks.serve.attempt import Attempt
    from closeranks.serve.gateway import Gateway
    from closeranks.serve.http.server import ClientConnection

_OK: Final = 200


class Delivery(ABC):
    """The client's side of an exchange: everything that a client sees of its request is said here."""

    # What most requests never come to is not set for each of them.
    relay: Relay | None = None
    _keeper: Keeper | None = None
    _degraded = ""  # the level of the ladder, if it is not the full service
    _forwarding = False
    over = False
    full = False  # the client takes nothing more for now

    def __init__(self, gateway: Gateway, request: Request, client: ClientConnection, ask: Ask) -> None:
        self._gateway = gateway
        self._request = request
        self._client = client
        self.ask = ask
        self.story = gateway.story_of(request, ask)

    def _begin_to_forward(self, attempt: Attempt, length: int | None) -> None:
        """Send the head of an answer; ``length`` of the body, if it is known."""
        self._forwarding = True
        lines = lines_of(end_to_end(attempt.headers)) if attempt.lines is None else attempt.lines
        lines += attempt.replica.line
        if self.relay is not None:
            lines += b"x-closeranks-resume: %b\r\n" % self.relay.exactness.encode()
        if self._degraded or self.story.without:
            less = [self._degraded, *(f"without-{name}" for name in self.story.without)]
            lines += b"%b: %b\r\n" % (DEGRADED, ", ".join(filter(None, less)).encode())
        if self._gateway.snapshots is not None:
            lines += self._gateway.snapshots.line(attempt.replica, self.ask)
        if self._keeper is not None:
            lines += b"x-closeranks-stream: %b\r\n" % self._keeper.stream.encode()
        self._begun(attempt.status, lines, length)
        if self.full:
            attempt.pause()

    def _begun(self, status: int, lines: bytes, length: int | None) -> None:
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
        self._begin_to_forward(attempt, len(body))
        self._client.send(body)
        self._finish()

    def _answer_locally(self, answer: LocalAnswer) -> None:
        self.story.status, self.story.whole = _OK, True
        self._close()
        self._client.answer(_OK, answer.headers, answer.body)

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
