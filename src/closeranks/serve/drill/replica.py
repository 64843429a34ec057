"""A replica over a real socket whose answers are a coroutine function of the drill."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

Script = Callable[["Talk"], Awaitable[None]]


class Talk:
    """One request at a replica: read already; its answer is what the script writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.head, self.body = b"", b""

    async def read(self) -> Talk:
        """Await the next request of the connection."""
        self.head = await self.reader.readuntil(b"\r\n\r\n")
        for line in self.head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                self.body = await self.reader.readexactly(int(line.split(b":")[1]))
        return self

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)

    def stream(self) -> None:
        """The head of a stream of events."""
        self.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        """One chunk of a stream."""
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """The proper end of a stream."""
        self.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """What the kernel does when a process is killed."""
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Return once the other side has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


class Replica:
    """Serves every request of every connection with its script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Talk] = []
        self.connections = 0
        self.asked = asyncio.Event()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> Replica:
        """Listen on this port of this machine, or on a free one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                talk = await Talk(reader, writer).read()
                self.requests.append(talk)
                self.asked.set()
                await self.script(talk)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # cancelled: the loop ends; asyncio's streams would report that as an error
        finally:
            self._writers.discard(writer)
            writer.close()

    async def stop(self) -> None:
        """Die: every connection is reset."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
