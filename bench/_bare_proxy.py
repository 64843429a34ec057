"""The least that a proxy in Python can do, as a yardstick: parse a request, send it on, parse the answer, send it back.

No deadline, no retry, no limit, no check of what it parses, no second replica.
Started as ``python _bare_proxy.py PORT REPLICA_PORT``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop

_idle: list[Upstream] = []


class Upstream(asyncio.Protocol):
    """A connection to the replica."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self in _idle:
            _idle.remove(self)

    def on_message_begin(self) -> None:
        self.headers, self.body = [], []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        client, self.client = self.client, None
        _idle.append(self)
        lines = [b"HTTP/1.1 %d OK\r\n" % self.parser.get_status_code()]
        for name, value in self.headers:
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"\r\n")
        if client is not None:
            client.transport.write(b"".join(lines + self.body))


class Client(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url, self.headers, self.body = b"", [], []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        lines = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"\r\n")
        data = b"".join(lines + self.body)
        if _idle:
            self._send(_idle.pop(), data)
        else:
            connecting = asyncio.get_running_loop().create_connection(Upstream, "127.0.0.1", self.port)
            task = asyncio.ensure_future(connecting)
            task.add_done_callback(lambda done: self._send(done.result()[1], data))

    def _send(self, upstream: Upstream, data: bytes) -> None:
        upstream.client = self
        upstream.transport.write(data)


async def main() -> None:
    """Serve."""
    port, replica = map(int, sys.argv[1:])
    server = await asyncio.get_running_loop().create_server(lambda: Client(replica), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
