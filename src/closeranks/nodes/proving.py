"""A connection before both ends have proved themselves: a few bytes are read, nothing is decoded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

from closeranks.nodes.handshake import NotProved, Proof

PROVE_S: Final = 5.0  # for all of it
_USER_TIMEOUT_MS: Final = 10_000  # what was sent and is not acknowledged for so long breaks the connection
_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS),
)


class Proving(asyncio.BufferedProtocol):
    """Drives a proof. Never more bytes are read than the next step of it needs.

    ``on_proved`` is called from the read that completed the proof and must give the transport another protocol, so
    that no byte behind the proof is lost; what it raises goes to the loop's exception handler. ``done`` ends then, or
    with NotProved. The deadline is the caller's.
    """

    def __init__(self, proof: Proof, on_proved: Callable[[asyncio.Transport], None]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._proof = proof
        self._on_proved = on_proved
        self._transport: asyncio.Transport | None = None
        self._answer = bytearray()
        self._got_bytes = 0
        self._hung_up = ""

    def give_up(self) -> None:
        """Cut the connection, if there is one already."""
        if not self.done.cancel() and not self.done.cancelled():
            self.done.exception()  # has been seen
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102 -- asyncio's
        # Those of other loops are transports too, and no subclass of asyncio's.
        self._transport = transport = cast("asyncio.Transport", transport)
        if self.done.done():  # given up before it began
            transport.abort()
            return
        set_options(transport.get_extra_info("socket"))
        self._go_on(None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002, D102 -- asyncio's
        return memoryview(self._answer)[self._got_bytes :]

    def buffer_updated(self, nbytes: int) -> None:  # noqa: D102 -- asyncio's
        self._got_bytes += nbytes
        if self.done.done():  # given up: what still comes is dropped
            self._got_bytes = 0
        elif self._got_bytes == len(self._answer):
            self._go_on(bytes(self._answer))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 -- asyncio's
        self._proof.close()
        if not self.done.done():
            what = f"{exc}" if exc else "the connection was closed"
            meaning = self._hung_up or "it does not prove itself as a node of this version"
            self.done.set_exception(NotProved(f"{meaning} ({what} after {self._got_bytes} bytes)"))

    def _go_on(self, answer: bytes | None) -> None:
        assert self._transport is not None
        try:
            step = next(self._proof) if answer is None else self._proof.send(answer)
            while True:
                if step.send:
                    self._transport.write(step.send)
                if step.answer_bytes:
                    break
                step = self._proof.send(b"")
        except StopIteration:
            self._hand_over(self._transport)
        except NotProved as problem:
            self._got_bytes = 0
            self._transport.abort()
            self.done.set_exception(problem)
        else:
            self._answer, self._got_bytes, self._hung_up = bytearray(step.answer_bytes), 0, step.hung_up

    def _hand_over(self, transport: asyncio.Transport) -> None:
        try:
            self._on_proved(transport)
        except Exception as error:  # a defect of ours; raised from here, an OSError would pass for the peer's
            transport.abort()
            what = {"message": "a proven connection was not taken", "exception": error}
            asyncio.get_running_loop().call_exception_handler({**what, "protocol": transport.get_protocol()})
            self.done.set_exception(NotProved(f"it was not taken here: {error!r}"))
        else:
            self.done.set_result(None)


def set_options(sock: socket.socket) -> None:
    """Small messages leave at once; a machine that is gone is noticed by the kernel."""
    for level, option, value in _OPTIONS:
        sock.setsockopt(level, option, value)
