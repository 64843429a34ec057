"""A client of many streams at once that notes when each piece came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

import msgspec


class Stream(msgspec.Struct):
    """One streamed answer as its client saw it."""

    text: str = ""
    complete: bool = False  # with a finish_reason and the end mark
    error: str = ""
    times_s: list[float] = []
    last_id: str = ""  # of the last event, where events have ids
    cuts: int = 0  # times that its connection was lost

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two pieces."""
        return max((b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False)), default=0.0)


async def ask(port: int, body: dict[str, Any], stream: Stream, limit_s: float) -> None:
    """Fill ``stream`` until the answer ends, breaks or takes longer than ``limit_s``."""
    try:
        async with asyncio.timeout(limit_s):
            await _ask(port, body, stream)
    except TimeoutError:
        stream.error = f"no end within {limit_s:g} s"
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        stream.error = f"cut: {type(error).__name__}"


async def ask_anywhere(ports: list[int], body: dict[str, Any], stream: Stream, limit_s: float) -> None:
    """Like ``ask``; where a connection is lost the next port is asked for the rest, with the last event's id."""
    try:
        async with asyncio.timeout(limit_s):
            for port in ports:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    await _ask(port, body, stream)
                if stream.complete or stream.error:
                    return
                stream.cuts += 1
            stream.error = "cut, and no gateway left to ask"
    except TimeoutError:
        stream.error = f"no end within {limit_s:g} s"


async def _ask(port: int, body: dict[str, Any], stream: Stream) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps(body).encode()
    lines = "content-type: application/json\r\n"
    lines += f"last-event-id: {stream.last_id}\r\n" if stream.last_id else ""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    try:
        status = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
        if b" 200 " not in status:
            stream.error = status.decode()
            return
        rest, finished, done = b"", False, False
        while size := int((await reader.readuntil(b"\r\n")).strip() or b"0", 16):
            data = await reader.readexactly(size + 2)
            rest += data[:-2]
            *events, rest = rest.split(b"\n\n")
            for event in events:
                label, _, data = event.rpartition(b"\n")
                stream.last_id = label.removeprefix(b"id: ").decode() or stream.last_id
                payload = data.removeprefix(b"data: ")
                if payload == b"[DONE]":
                    done = True
                    continue
                chunk = json.loads(payload)
                if "error" in chunk:
                    stream.error = str(chunk["error"])
                for choice in chunk.get("choices", ()):
                    text = choice["delta"].get("content")
                    if text:
                        stream.text += text
                        stream.times_s.append(time.monotonic())
                    finished = finished or bool(choice.get("finish_reason"))
        stream.complete = done and finished and not stream.error
    finally:
        writer.transport.abort()


async def whole(port: int, body: dict[str, Any]) -> str:
    """The answer to a request, from an engine that nobody disturbs."""
    stream = Stream(times_s=[])
    await ask(port, body, stream, 120.0)
    if not stream.complete:
        raise RuntimeError(f"the undisturbed answer is not complete: {stream.error}")
    return stream.text
