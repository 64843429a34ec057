"""The calling end: keeps one connection to the present leader, wherever that is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from closeranks.decide.retry_budget import Backoff, wait_s
from closeranks.nodes.handshake import LINK, Keys, NotProved, prove_as_caller
from closeranks.nodes.link import READ_BYTES, Connection, Ears, End, Ended
from closeranks.nodes.proving import PROVE_S, Proving
from closeranks.nodes.words import Address


class Patience(NamedTuple):
    """How long a caller waits for what."""

    connect_s: float = PROVE_S  # for a connection and both proofs
    silence_s: float = 10.0  # a connection that brings nothing for so long is cut; longer than lease and fence
    backoff: Backoff = Backoff()


class Missed(NamedTuple):
    """An attempt that did not come to a connection."""

    address: Address
    epoch: int
    failures: int  # in a row
    reason: str
    again_s: float  # until the next attempt


class Hearer(NamedTuple):
    """Whom a caller tells; called from the loop. What they raise goes to the loop's exception handler."""

    on_up: Callable[[Connection, int], Ears]  # with the epoch that it was called for; its first words go from here
    on_missed: Callable[[Missed], None]


async def call(
    address: Address, keys: Keys, purpose: bytes, on_proved: Callable[[asyncio.Transport], None], within_s: float
) -> None:
    """Connect and prove; ``on_proved`` gives the transport another protocol.

    Raises:
        OSError: nobody listens there, or it cannot be reached; TimeoutError is one: not within that time.
        NotProved: what listens there is no node of this run, or does not answer as one.
    """
    tls = keys.tls.calling if keys.tls else None
    proving = Proving(prove_as_caller(keys.token, purpose), on_proved)
    proven = False
    try:
        async with asyncio.timeout(within_s):
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: proving, address.host, address.port, ssl=tls)
            await proving.done
        proven = True
    finally:
        if not proven:
            proving.give_up()


class Caller:
    """Keeps a connection to where ``retarget`` last pointed: calls again when it ends, with backoff and full jitter."""

    def __init__(
        self, keys: Keys, kinds: Any, hearer: Hearer, draw: random.Random, patience: Patience | None = None
    ) -> None:
        """``kinds``: the union of words that may arrive. ``draw``: for the jitter."""
        self.connection: Connection | None = None  # while one is up
        self._keys = keys
        self._kinds = kinds
        self._hearer = hearer
        self._draw = draw
        self._patience = patience or Patience()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._target: tuple[Address, int] | None = None
        self._pursuit: asyncio.Task[None] | None = None

    def retarget(self, address: Address, epoch: int) -> bool:
        """Call there from now on; an open connection to elsewhere is cut. False: of an older epoch, ignored."""
        if self._target is not None and epoch < self._target[1]:
            return False
        if self._target != (address, epoch):
            self._stop(f"the leader of epoch {epoch} is at {address}")
            self._target = (address, epoch)
            self._pursuit = asyncio.get_running_loop().create_task(self._pursue(address, epoch))
            self._pursuit.add_done_callback(_pursued)
        return True

    def close(self, reason: str) -> None:
        """Call no more; what was sent still goes out."""
        if self._pursuit is not None:
            self._pursuit.cancel()
        if self.connection is not None:
            self.connection.close(reason)
            self.connection = None

    def _stop(self, reason: str) -> None:
        if self._pursuit is not None:
            self._pursuit.cancel()
        if self.connection is not None:
            self.connection.abort(reason)
            self.connection = None

    async def _pursue(self, address: Address, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            ended: asyncio.Future[End] = loop.create_future()
            try:
                await call(address, self._keys, LINK, self._taker(epoch, ended), self._patience.connect_s)
            except (OSError, NotProved) as error:
                failures += 1
                again_s = wait_s(self._patience.backoff, failures, self._draw.random())
                reason = str(error) or f"no connection within {self._patience.connect_s:g} s"
                self._hearer.on_missed(Missed(address, epoch, failures, reason, again_s))
            else:
                up_s = loop.time()
                await self._until(ended)
                # A leader that takes callers and drops them at once is no success.
                failures = 1 if loop.time() - up_s > self._patience.backoff.ceiling_s else failures + 1
                again_s = wait_s(self._patience.backoff, failures, self._draw.random())
            await asyncio.sleep(again_s)

    def _taker(self, epoch: int, ended: asyncio.Future[End]) -> Callable[[asyncio.Transport], None]:
        def take(transport: asyncio.Transport) -> None:
            connection = Connection(transport, self._kinds, self._buffer)
            transport.set_protocol(connection)
            self.connection = connection
            ears = self._hearer.on_up(connection, epoch)

            def close(end: End) -> None:
                if self.connection is connection:
                    self.connection = None
                if not ended.done():
                    ended.set_result(end)
                ears.on_closed(end)

            connection.hear(Ears(ears.on_word, close))

        return take

    async def _until(self, ended: asyncio.Future[End]) -> None:
        """Wait for the end of the connection, and bring it about when nothing is heard."""
        connection = self.connection
        loop = asyncio.get_running_loop()
        while connection is not None and not ended.done():
            left_s = connection.heard_s + self._patience.silence_s - loop.time()
            if left_s <= 0:
                connection.abort(f"nothing was heard for {self._patience.silence_s:g} s", Ended.SILENT)
                await ended
            else:
                await asyncio.wait((ended,), timeout=left_s)


def _pursued(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a caller calls no more", "exception": error})
