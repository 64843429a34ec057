"""The supervisor's end of a worker's control connection.

Reading and writing never block the supervisor's loop. What a worker does not take is kept up to a bound, so that a
frozen worker costs memory for itself only; past the bound, or when it sends bytes that are no message, the link is
broken and the worker is treated as failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import NamedTuple

from closeranks import messages

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
        on_message: Callable[[messages.Message], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._sock = sock
        self._on_message = on_message
        self._on_broken = on_broken
        self._decoder = messages.Decoder(messages.WorkerMessage)  # a union, as msgspec takes it
        self._pending: list[_Chunk] = []
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def send(self, message: messages.SupervisorMessage, fds: tuple[int, ...] = ()) -> None:
        """Send, now or when the worker reads again. The descriptors must stay open until ``close``."""
        if not self._open:
            return
        self._pending.append(_Chunk(memoryview(messages.encode(message)), fds))
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
            if not data:  # the worker's end is closed: its exit is seen by its pidfd, not here
                self.close()
                return
            self._decode(data)

    def _decode(self, data: bytes) -> None:
        try:
            received = self._decoder.feed(data)
        except messages.FrameError as error:
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
