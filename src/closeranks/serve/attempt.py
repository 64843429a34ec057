"""One request to one replica, as its exchange sees it; and questions beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from closeranks.serve.http.head import Headers
from closeranks.serve.http.upstream import Answer, Cut
from closeranks.serve.story import Visit
from closeranks.serve.wording import Words

if TYPE_CHECKING:
    from closeranks.serve.attempts import Attempts
    from closeranks.serve.http.upstream import KnownAnswer, UpstreamConnection
    from closeranks.serve.replica import Replica

HELD_BYTES_MAX: Final = 2**20
"""Of an answer that is not streamed: as long as it is held back, a replica may die without the client noticing."""

NOT_DRILLED: Final = ("", 0.0, False)
"""What a drill has done to a dependency of the replica: to which, for how long, and whether that failed."""

_ERROR: Final = 400


class Attempt(msgspec.Struct, eq=False):
    """One request to one replica. What a given-up attempt still says is not heard."""

    exchange: Attempts | None
    replica: Replica
    visit: Visit  # what will be told of it
    words: Words | None  # that are not the request's own, as any replica may be asked
    heard_s: float
    preparing: bool = False  # a question of the relay; the client hears nothing of it
    status: int = 0
    headers: Headers = []
    known: KnownAnswer | None = None  # the head was, and the whole answer is here
    held: list[bytes] = []
    body: int = 0  # bytes that came
    readings: int = 0
    drilled: tuple[str, float, bool] = NOT_DRILLED
    connection: UpstreamConnection | None = None
    task: asyncio.Task[None] | None = None  # that connects

    def send(self, data: bytes, *, head_only: bool) -> None:
        """Go out as these bytes."""
        pool = self.replica.pool
        self.connection = pool.take()
        if self.connection is None:
            self.task = pool.connect(data, self, self._got, head_only=head_only)
        else:
            self.connection.request(data, self, head_only=head_only)

    def _got(self, connection: UpstreamConnection) -> None:
        self.connection = connection

    def give_up(self) -> None:
        """The replica's work is not needed any more; it hears of it at once."""
        self.exchange = None
        if self.connection is not None:
            self.connection.cancel()
        elif self.task is not None:
            self.task.cancel()

    def pause(self) -> None:
        """Take no more data."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Take data again."""
        if self.connection is not None:
            self.connection.resume()

    def on_head(self, status: int, headers: Headers) -> None:
        """See Answer."""
        self.status, self.headers = status, headers
        if self.exchange is not None:
            self.exchange.on_head(self)

    def on_data(self, data: bytes) -> None:
        """See Answer."""
        if self.exchange is not None:
            self.body += len(data)
            self.readings += 1
            self.exchange.on_data(self, data)

    def on_end(self) -> None:
        """See Answer."""
        self.connection = None
        if self.exchange is not None:
            self.exchange.on_end(self)

    def on_whole(self, known: KnownAnswer, headers: Headers, body: bytes) -> None:
        """See Answer."""
        self.connection, exchange = None, self.exchange
        if exchange is None:
            return
        self.status, self.headers, self.known = known.status, headers, known
        exchange.on_head(self)
        if body and self.exchange is not None:
            self.body, self.readings = len(body), 1
            exchange.on_data(self, body)
        if self.exchange is not None:
            exchange.on_end(self)

    def on_cut(self, cut: Cut, detail: str) -> None:
        """See Answer."""
        self.connection = None
        if self.exchange is not None:
            self.exchange.on_cut(self, cut, detail)


class Aside(Answer):
    """A question beside the answer; if it fails, nothing is lost but time."""

    def __init__(self, told: Callable[[bytes], None]) -> None:
        self._told = told
        self._data: list[bytes] = []
        self._bytes = 0
        self._good = False

    def on_head(self, status: int, headers: Headers) -> None:
        """See Answer."""
        del headers
        self._good = status < _ERROR

    def on_data(self, data: bytes) -> None:
        """See Answer."""
        self._bytes += len(data)
        if self._bytes <= HELD_BYTES_MAX:
            self._data.append(data)

    def on_end(self) -> None:
        """See Answer."""
        if self._good and self._bytes <= HELD_BYTES_MAX:
            self._told(b"".join(self._data))

    def on_cut(self, cut: Cut, detail: str) -> None:
        """See Answer."""
