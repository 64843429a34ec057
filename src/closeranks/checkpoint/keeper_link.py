"""The keeper's end of its socket: messages with descriptors in, reports out, nothing that blocks."""

from __future__ import annotations

import socket
from collections import deque
from typing import Final

from closeranks import frames
from closeranks.checkpoint.keeper_messages import WRITERS_MAX, FromKeeper, Publish, ToKeeper

_READ_BYTES: Final = 2**18
_UNSENT_BYTES_MAX: Final = 64 * 2**20  # a parent that does not read for so long is no parent any more


Message = tuple[ToKeeper, tuple[int, ...]]
"""With the descriptors that came along, which are the receiver's to close."""


class LinkBroken(Exception):
    """The parent closed the socket, sent what is no message, or does not read."""


class Link:
    """For one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._decoder: frames.Decoder[ToKeeper] = frames.Decoder(ToKeeper)
        self._fds: deque[int] = deque()
        self._unsent = bytearray()

    @property
    def wants_to_write(self) -> bool:
        """Whether reports wait for room in the socket."""
        return bool(self._unsent)

    def receive(self) -> list[Message]:
        """Messages that have arrived, each with its descriptors, which are the caller's from now on.

        Raises:
            LinkBroken: nothing more will come.
        """
        try:
            data, fds, flags, _ = socket.recv_fds(self.sock, _READ_BYTES, WRITERS_MAX)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkBroken(f"reading from the parent: {error.strerror}") from error
        self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            raise LinkBroken("descriptors were lost on their way: is the limit of open files reached?")
        if not data:
            raise LinkBroken("the parent closed the socket")
        try:
            return [(message, self._fds_of(message)) for message in self._decoder.feed(data)]
        except frames.FrameError as error:
            raise LinkBroken(str(error)) from error

    def send(self, report: FromKeeper) -> None:
        """Send, now or when there is room.

        Raises:
            LinkBroken: the parent is gone or does not read.
        """
        self._unsent += frames.encode(report)
        self.flush()
        if len(self._unsent) > _UNSENT_BYTES_MAX:
            raise LinkBroken(f"{len(self._unsent)} bytes of reports wait for a parent that does not read")

    def flush(self) -> None:
        """Send what waits, as far as there is room. Raises LinkBroken as ``send``."""
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkBroken(f"writing to the parent: {error.strerror}") from error
            del self._unsent[:sent]

    def _fds_of(self, message: ToKeeper) -> tuple[int, ...]:
        if not isinstance(message, Publish):
            return ()
        # They arrive with the first byte of their message, so all of them are here, in the order of the messages.
        if len(self._fds) < len(message.writers):
            raise LinkBroken(f"save {message.save}: expected {len(message.writers)} arenas, got {len(self._fds)}")
        return tuple(self._fds.popleft() for _ in message.writers)
