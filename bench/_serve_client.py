"""A client of many streams at once that notes when each piece came."""

from __future__ import annotations

import asyncio
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


async def _ask(port: int, body: dict[str, Any], stream: Stream) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
    writer.write(head + raw)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            stream.error = head.split(b"\r\n")[0].decode()
            return
        rest, finished, done = b"", False, False
        while size := int((await reader.readuntil(b"\r\n")).strip() or b"0", 16):
            data = await reader.readexactly(size + 2)
            rest += data[:-2]
            *events, rest = rest.split(b"\n\n")
            for event in events:
                payload = event.removeprefix(b"data: ")
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
