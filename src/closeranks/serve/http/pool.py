"""Connections to one replica: kept, reused, and given away to one request at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from closeranks.serve.http.target import Target
from closeranks.serve.http.upstream import Answer, Cut, UpstreamConnection


class Pool:
    """The connections to one replica."""

    def __init__(self, target: Target, *, connect_s: float = 2.0, context: ssl.SSLContext | None = None) -> None:
        self.target = target
        self._connect_s = connect_s
        self._context = context if target.tls else None
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def request(
        self, data: bytes, answer: Answer, got: Callable[[UpstreamConnection], None], *, head_only: bool = False
    ) -> asyncio.Task[None] | None:
        """Send ``data`` over a kept connection, or a new one; ``got`` hears which.

        Returns:
            The task that connects, to be cancelled by whoever does not want to wait any more; None if nothing has to
            be waited for.
        """
        connection = self.take()
        if connection is None:
            return self.connect(data, answer, got, head_only=head_only)
        got(connection)
        connection.request(data, answer, head_only=head_only)
        return None

    def take(self) -> UpstreamConnection | None:
        """A kept connection, which belongs to the caller from now on; None: there is none."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    def connect(
        self, data: bytes, answer: Answer, got: Callable[[UpstreamConnection], None], *, head_only: bool = False
    ) -> asyncio.Task[None]:
        """Send ``data`` over a new connection; see ``request``."""
        task = asyncio.get_running_loop().create_task(self._connect(data, answer, got, head_only=head_only))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(
        self, data: bytes, answer: Answer, got: Callable[[UpstreamConnection], None], *, head_only: bool
    ) -> None:
        loop, target = asyncio.get_running_loop(), self.target
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self), target.host, target.port, ssl=self._context
                )
        except (OSError, TimeoutError, ssl.SSLError) as error:
            why = str(error) or f"no connection within {self._connect_s:g} s"
            answer.on_cut(Cut.REFUSED, why)
            return
        self._all.add(connection)
        got(connection)
        connection.request(data, answer, head_only=head_only)

    def give_back(self, connection: UpstreamConnection) -> None:
        """The connection is free."""
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is closed, or about to be."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close all connections; whoever waits for an answer hears that it was cut."""
        for task in self._tasks:
            task.cancel()
        for connection in list(self._all):
            connection.transport.close()
        self._idle.clear()
