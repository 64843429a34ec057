"""One request to one replica, as its exchange sees it; and questions beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from closeranks.serve.http.head import Headers, Request, request_bytes
from closeranks.serve.http.upstream import Cut
from closeranks.serve.story import Visit

if TYPE_CHECKING:
    from closeranks.serve.exchange import Exchange
    from closeranks.serve.gateway import Replica
    from closeranks.serve.http.upstream import UpstreamConnection

HELD_BYTES_MAX: Final = 2**20
"""Of an answer that is not streamed: as long as it is held back, a replica may die without the client noticing."""

NOT_DRILLED: Final = ("", 0.0, False)
"""What a drill has done to a dependency of the replica: to which, for how long, and whether that failed."""

_ERROR: Final = 400


class Attempt:
    """One request to one replica. What a given-up attempt still says is not heard."""

    __slots__ = (
        *("_connection", "_task", "body", "drilled", "exchange", "headers", "heard_s", "held", "lines", "preparing"),
        *("readings", "replica", "status", "visit", "wording"),
    )

    def __init__(
        self,
        exchange: Exchange,
        replica: Replica,
        visit: Visit,
        wording: tuple[bytes, bytes],
        *,
        preparing: bool = False,
    ) -> None:
        self.exchange: Exchange | None = exchange
        self.replica = replica
        self.visit = visit  # what will be told of it
        self.wording = wording  # target and body, as any replica may be asked
        self.heard_s = visit.began_s
        self.preparing = preparing  # a question of the relay; the client hears nothing of it
        self.status = 0
        self.headers: Headers = []
        self.lines: bytes | None = None  # of the headers that the client gets, if they are known already
        self.held: list[bytes] = []
        self.body = 0  # bytes that came
        self.readings = 0
        self.drilled = NOT_DRILLED
        self._connection: UpstreamConnection | None = None
        self._task: asyncio.Task[None] | None = None

    def send(self, request: Request, lines: bytes, wording: tuple[bytes, bytes]) -> None:
        """Go out, as ``request`` in this wording and with these lines of headers."""
        target, body = wording
        data = request_bytes(request.method, self.replica.prefix + target, lines, body)
        self._task = self.replica.pool.request(data, self, self._got, head_only=request.method == b"HEAD")

    def _got(self, connection: UpstreamConnection) -> None:
        self._connection = connection

    def give_up(self) -> None:
        """The replica's work is not needed any more; it hears of it at once."""
        self.exchange = None
        if self._connection is not None:
            self._connection.cancel()
        elif self._task is not None:
            self._task.cancel()

    def pause(self) -> None:
        """Take no more data."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Take data again."""
        if self._connection is not None:
            self._connection.resume()

    def on_head(self, status: int, headers: Headers) -> None:
        """See Answer."""
        self.status, self.headers = status, headers
        self.lines = None if self._connection is None else self._connection.lines
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
        self._connection = None
        if self.exchange is not None:
            self.exchange.on_end(self)

    def on_cut(self, cut: Cut, detail: str) -> None:
        """See Answer."""
        self._connection = None
        if self.exchange is not None:
            self.exchange.on_cut(self, cut, detail)


class Aside:
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
