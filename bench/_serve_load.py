"""Requests that come when they come, whether the service keeps up or not; and what became of each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

BODY = b'{"model":"m","messages":[{"role":"user","content":"?"}],"temperature":0.7}'
PATIENCE_S = 5.0  # of every client, sent as its deadline


class Stream(NamedTuple):
    """A class of requests: how many a second, and the headers that make it one."""

    name: str
    per_s: float
    headers: str = ""


class Call(msgspec.Struct):
    """One request. Times are seconds of the monotonic clock."""

    name: str
    at_s: float
    status: int = 0  # 0: the connection broke, or no answer in time
    took_s: float = 0.0

    @property
    def good(self) -> bool:
        """Whether it was served within its deadline."""
        return self.status == 200 and self.took_s <= PATIENCE_S


class Load:
    """Sends streams of requests over kept connections to one port, and keeps every call."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._draw = random.Random(seed)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.calls: list[Call] = []

    async def run(self, streams: Iterable[Stream], seconds: float) -> None:
        """All streams at once, with random pauses; returns when the last request is sent."""
        await asyncio.gather(*(self._send(stream, time.monotonic() + seconds) for stream in streams))

    async def settle(self) -> None:
        """Wait until every request has ended; close the connections."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()

    async def _send(self, stream: Stream, end_s: float) -> None:
        due_s = time.monotonic()
        while (due_s := due_s + self._draw.expovariate(stream.per_s)) < end_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            call = Call(stream.name, time.monotonic())
            self.calls.append(call)
            task = asyncio.create_task(self._ask(call, stream.headers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, call: Call, headers: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S + 2.0):
                connection = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
                call.status = await _exchange(connection, headers)
                self._idle.append(connection)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            call.status = 0
        call.took_s = time.monotonic() - call.at_s


async def _exchange(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], headers: str) -> int:
    reader, writer = connection
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{headers}x-request-timeout-ms: {1000 * PATIENCE_S:.0f}\r\n"
        f"content-length: {len(BODY)}\r\n\r\n"
    )
    writer.write(head.encode() + BODY)
    answered = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(answered.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return int(answered.split(b" ", 2)[1])
