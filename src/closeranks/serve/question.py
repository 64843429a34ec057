"""One small question to a replica, awaited for a bounded time; given up, it takes the replica's work along."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from closeranks.serve.http.head import Headers
from closeranks.serve.http.pool import Pool
from closeranks.serve.http.upstream import Answer, Cut, UpstreamConnection

ANSWER_BYTES_MAX: Final = 2**20


class Answered(NamedTuple):
    """The replica's answer."""

    status: int
    body: bytes


class Unanswered(NamedTuple):
    """There was none."""

    cut: Cut
    detail: str


class _Collector(Answer):
    """See Answer: puts an answer together."""

    def __init__(self, future: asyncio.Future[Answered | Unanswered]) -> None:
        self._future = future
        self._status = 0
        self._parts: list[bytes] = []
        self._bytes = 0

    def on_head(self, status: int, headers: Headers) -> None:
        """See Answer."""
        del headers
        self._status = status

    def on_data(self, data: bytes) -> None:
        """See Answer."""
        self._bytes += len(data)
        if self._bytes <= ANSWER_BYTES_MAX:
            self._parts.append(data)
        else:
            self._settle(Unanswered(Cut.BAD_BYTES, f"more than {ANSWER_BYTES_MAX} bytes"))

    def on_end(self) -> None:
        """See Answer."""
        self._settle(Answered(self._status, b"".join(self._parts)))

    def on_cut(self, cut: Cut, detail: str) -> None:
        """See Answer."""
        self._settle(Unanswered(cut, detail))

    def _settle(self, result: Answered | Unanswered) -> None:
        if not self._future.done():
            self._future.set_result(result)


async def ask(pool: Pool, data: bytes, within_s: float) -> Answered | Unanswered:
    """Send a whole request and await its whole answer."""
    future: asyncio.Future[Answered | Unanswered] = asyncio.get_running_loop().create_future()
    got: list[UpstreamConnection] = []
    task = pool.request(data, _Collector(future), got.append)
    try:
        result = await asyncio.wait_for(asyncio.shield(future), within_s)
    except TimeoutError:
        result = Unanswered(Cut.SILENT, f"no answer within {within_s:g} s")
    if not (isinstance(result, Answered) or got):
        if task is not None:
            task.cancel()
    elif not isinstance(result, Answered):
        got[0].cancel()
    return result
