"""Replicas that do what a test says, and a gateway in front of them, in one event loop over real sockets."""

import asyncio
import contextlib

from closeranks.serve.drill.replica import Replica
from closeranks.serve.gateway import Gateway
from closeranks.serve.settings import parse

DEADLINE_S = 30.0


def answer(status, body, headers=()):
    lines = [f"HTTP/1.1 {status} X", *headers, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def settings_for(replicas, more="", replica=""):
    """Settings for replicas ``a``, ``b``, ... with ``replica`` in their tables."""
    tables = [
        f'[[replica]]\nname = "{name}"\nurl = "http://127.0.0.1:{fake.port}"\n{replica}'
        for name, fake in zip("abcdefgh", replicas, strict=False)
    ]
    return parse(f"{more}\n[listen]\nport = 0\n{''.join(tables)}", "test.toml")


@contextlib.asynccontextmanager
async def fakes(*scripts):
    """Replicas that do what their scripts say."""
    replicas = [await Replica(script).start() for script in scripts]
    try:
        yield replicas
    finally:
        for fake in replicas:
            await fake.stop()


@contextlib.asynccontextmanager
async def gateway(*scripts, more="", replica=""):
    """A gateway and its replicas: (gateway, port, replicas)."""
    async with fakes(*scripts) as replicas:
        front = Gateway(settings_for(replicas, more, replica))
        port = await front.start()
        try:
            yield front, port, replicas
        finally:
            await front.close()


OPENED = set()


class Client:
    """A client that speaks raw HTTP."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        OPENED.add(self)

    @staticmethod
    async def to(port):
        return Client(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, data):
        self.writer.write(data)

    def post(self, path, body, headers=()):
        lines = [f"POST {path} HTTP/1.1", "host: x", *headers, f"content-length: {len(body)}", "", ""]
        self.send("\r\n".join(lines).encode() + body)

    async def head(self):
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        pairs = [line.split(": ", 1) for line in lines if line]
        return int(first.split()[1]), {name.lower(): value for name, value in pairs}

    async def response(self):
        """Status, headers and the whole body; the body is cut short by ``asyncio.IncompleteReadError``."""
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while chunk := await self.chunk():
                body += chunk
            return status, headers, body
        return status, headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def chunk(self):
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    def close(self):
        self.writer.transport.abort()


def run(coroutine):
    """Run a test's script with a deadline; its clients are closed at the end."""

    async def bounded():
        try:
            return await asyncio.wait_for(coroutine, DEADLINE_S)
        finally:
            while OPENED:
                OPENED.pop().close()
            await asyncio.sleep(0)

    return asyncio.run(bounded())
