"""The supervisor's end of a control connection to a process of its own, mostly a worker.

Reading and writing never block the loop. What the other side does not take is kept up to a bound, so that a frozen
process costs memory for itself only; past the bound, or when it sends bytes that are no message, the link is broken
and the process is treated as failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from closeranks import frames, messages

_READ_BYTES = 2**18
_PENDING_BYTES_MAX = 4 * 2**20


class _Chunk(NamedTuple):
    data: memoryview
    fds: tuple[int, ...]  # travel with the first byte


class Link:
    """One control connection; ``on_message`` and ``on_broken`` are called from the loop, the latter at most once."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Any], None],
        on_broken: Callable[[str], None],
        kinds: Any = messages.WorkerMessage,
    ) -> None:
        """``kinds``: the union of messages that may arrive."""
        self.on_closed: Callable[[], None] = lambda: None  # the other end is closed; called at most once
        self._sock = sock
        self._on_message = on_message
        self._on_broken = on_broken
        self._decoder: frames.Decoder[Any] = frames.Decoder(kinds)
        self._pending: list[_Chunk] = []
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def send(self, message: msgspec.Struct, fds: tuple[int, ...] = ()) -> None:
        """Send, now or when the worker reads again. The descriptors must stay open until ``close``."""
        if not self._open:
            return
        self._pending.append(_Chunk(memoryview(frames.encode(message)), fds))
        self._write()
        waiting_bytes = sum(len(chunk.data) for chunk in self._pending)
        if waiting_bytes > _PENDING_BYTES_MAX:
            self._break(f"{waiting_bytes} bytes wait for a worker that does not read")

    def drain(self) -> None:
        """Take what a process that has ended left behind."""
        if self._open:
            self._read()

    def close(self) -> None:
        """Stop listening; the socket itself is its owner's to close."""
        if self._open:
            self._open = False
            self._pending.clear()
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        while self._open:
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:  # the other end is closed: a worker's exit is seen by its pidfd, not here
                self.close()
                self.on_closed()
                return
            self._decode(data)

    def _decode(self, data: bytes) -> None:
        try:
            received = self._decoder.feed(data)
        except frames.FrameError as error:
            self._break(str(error))
            return
        for message in received:
            self._on_message(message)

    def _write(self) -> None:
        while self._pending and self._open:
            chunk = self._pending[0]
            try:
                sent = (
                    socket.send_fds(self._sock, [chunk.data], chunk.fds) if chunk.fds else self._sock.send(chunk.data)
                )
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._write)
                return
            except OSError:  # the worker is gone or going
                self._pending.clear()
                break
            if sent < len(chunk.data):
                self._pending[0] = _Chunk(chunk.data[sent:], ())
            else:
                del self._pending[0]
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_writer(self._sock)

    def _break(self, reason: str) -> None:
        self.close()
        self._on_broken(reason)
