"""A connection between two nodes that have proved themselves: words in frames, both ways, never waiting for the peer.

What a peer does not take is kept up to a bound; past it the connection is cut, so that a slow reader costs memory for
itself only. How a connection ended is told as exactly as the kernel tells it: a peer that *hangs up* has closed or its
process has ended, for our own cuts always go out as resets.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from closeranks.frames import Decoder, FrameError, encode, packed

WAITING_BYTES_MAX: Final = 4 * 2**20  # beside one frame: that which goes past it is the last
READ_BYTES: Final = 2**16
_FLUSH_S: Final = 2.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Ended(StrEnum):
    """How a connection came to its end."""

    HUNG_UP = "hung up"  # the peer closed it in order, or its process has ended
    RESET = "reset"  # by the peer's kernel, or by something between
    LOST = "lost"  # the network gave up
    BROKEN = "broken"  # the peer sent what is no message
    SLOW = "slow"  # the peer does not read
    SILENT = "silent"  # nothing was heard for too long
    CUT = "cut"  # by us
    CLOSED = "closed"  # by us, in order


class End(NamedTuple):
    """The end of a connection, and why."""

    how: Ended
    detail: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.how}: {self.detail}" if self.detail else str(self.how)


class Ears(NamedTuple):
    """Whom a connection tells; both are called from the loop, never from within a call of ours.

    What they raise goes to the loop's exception handler; after a word that was not taken the connection is cut.
    """

    on_word: Callable[[Any], None]
    on_closed: Callable[[End], None]  # exactly once, and nothing is heard after it


class Connection(asyncio.BufferedProtocol):
    """One connection. Made by ``serve`` and by ``Caller``."""

    def __init__(self, transport: asyncio.Transport, kinds: Any, read_buffer: memoryview) -> None:
        """``kinds``: the union of words that may arrive. ``read_buffer`` may be shared by all connections of a loop."""
        self.peer = _spelled(transport.get_extra_info("peername"))
        self.end: End | None = None  # while it is open
        self.heard_s = asyncio.get_running_loop().time()  # when bytes last arrived, on the loop's clock
        self._transport = transport
        self._decoder: Decoder[Any] = Decoder(kinds)
        self._buffer = read_buffer
        self._time = asyncio.get_running_loop().time
        self._ears: Ears | None = None
        self._flush: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)

    @property
    def is_open(self) -> bool:
        """Whether words can still be sent and heard."""
        return self.end is None

    def hear(self, ears: Ears) -> None:
        """Whom to tell from now on."""
        self._ears = ears

    def send(self, word: msgspec.Struct) -> None:
        """Send now, or when the peer reads again; dropped when the connection has ended.

        Raises:
            FrameError: the word is too long for a frame; nothing was sent.
        """
        if self.is_open:
            self.send_frames(packed(encode(word)))

    def send_frames(self, frames: bytes) -> None:
        """Send what ``frames.encode`` made of one word or several, as ``send`` does."""
        if not self.is_open or self._transport.is_closing():  # it is lost, and we are about to hear so
            return
        waiting_bytes = self._transport.get_write_buffer_size()
        if waiting_bytes > WAITING_BYTES_MAX:
            self.abort(f"{waiting_bytes} bytes wait for a peer that does not read", Ended.SLOW)
            return
        self._transport.write(frames)

    def abort(self, reason: str, how: Ended = Ended.CUT) -> None:
        """Cut it at once. What waits is dropped, here and in the kernel, and the peer sees a reset."""
        if self.end is None:
            self.end = End(how, reason)
        self._abort()

    def close(self, reason: str) -> None:
        """Hear no more, send what waits, and hang up; a peer that does not take it within 2 s is cut off."""
        if self.end is None:
            self.end = End(Ended.CLOSED, reason)
            self._transport.close()
            self._flush = asyncio.get_running_loop().call_later(_FLUSH_S, self._abort)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002, D102 -- asyncio's
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:  # noqa: D102 -- asyncio's
        if not self.is_open:
            return
        self.heard_s = self._time()
        try:
            words = self._decoder.feed(bytes(self._buffer[:nbytes]))
        except FrameError as error:
            self.abort(str(error), Ended.BROKEN)
            return
        self._tell(words)

    def eof_received(self) -> None:  # noqa: D102 -- asyncio's
        if self.end is None:
            self.end = End(Ended.HUNG_UP, "the peer closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 -- asyncio's
        if self._flush is not None:
            self._flush.cancel()
        if self.end is None:
            self.end = _end_of(exc)
        if self._ears is not None:  # None: whoever was to have it failed on it
            self._ears.on_closed(self.end)

    def _tell(self, words: list[Any]) -> None:
        assert self._ears is not None
        for word in words:
            if not self.is_open:  # the one before was the last that its hearer wanted
                return
            try:
                self._ears.on_word(word)
            except Exception as error:
                self._not_heard(word, error)
                return

    def _not_heard(self, word: Any, error: Exception) -> None:
        """A defect of ours. Raised from here, an OSError would pass for the peer's: asyncio tells nobody of those."""
        what = f"a {type(word).__name__} from {self.peer} was not taken"
        self.abort(f"{what}: {error!r}")
        asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error, "protocol": self})

    def _abort(self) -> None:
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # closed already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()


def _end_of(error: Exception | None) -> End:
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return End(Ended.RESET, str(error))
    if isinstance(error, ssl.SSLError):
        return End(Ended.BROKEN, str(error))
    return End(Ended.LOST, str(error or "the connection ended without a reason"))


def _spelled(name: tuple[Any, ...]) -> str:
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
