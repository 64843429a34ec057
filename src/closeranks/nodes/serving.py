"""The listening end: accepts, has callers prove themselves, and hands out connections.

A stranger costs one of a bounded number of places for a few seconds. When all are taken, whoever has been proving for
longest makes room, but not before it had time enough for an honest proof; until then newcomers wait in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Any, Final

from closeranks.nodes.handshake import LINK, Keys, NotProved, prove_as_listener
from closeranks.nodes.link import READ_BYTES, Connection, Ears
from closeranks.nodes.proving import PROVE_S, Proving
from closeranks.nodes.words import Address

GUESTS_MAX: Final = 512  # connections that have not proved themselves
HONEST_S: Final = 1.0  # a guest has so long before it may be asked to make room
_BACKLOG: Final = 4096  # all nodes of a large job call a new leader at once
_OUT_OF_PLACES_S: Final = 0.1
_OUT_OF_PLACES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

OnProved = Callable[[asyncio.Transport], None]


class Listener:
    """A listening socket whose callers prove themselves. ``address`` is the real one, with its port."""

    def __init__(self, listening: socket.socket, keys: Keys, purpose: bytes, on_proved: OnProved) -> None:
        host, port, *_ = listening.getsockname()
        self.address = Address(host=host, port=port)
        self._socket = listening
        self._keys = keys
        self._purpose = purpose
        self._on_proved = on_proved
        self._loop = asyncio.get_running_loop()
        self._guests: dict[asyncio.Task[None], float] = {}  # since when, oldest first
        self._left = asyncio.Event()  # a guest has left
        self._accepting = self._loop.create_task(self._accept())

    @property
    def guests(self) -> int:
        """Connections that have not proved themselves yet."""
        return len(self._guests)

    async def close(self) -> None:
        """Listen no more, and send guests away; connections that were handed out stay."""
        tasks = [self._accepting, *self._guests]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        while True:
            await self._have_room()
            try:
                sock, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                # Otherwise a caller that is gone again; with no descriptor left, guests must leave first.
                if error.errno in _OUT_OF_PLACES:
                    await asyncio.sleep(_OUT_OF_PLACES_S)
                continue
            task = self._loop.create_task(self._prove(sock))
            self._guests[task] = self._loop.time()
            task.add_done_callback(self._leave)

    async def _have_room(self) -> None:
        while len(self._guests) >= GUESTS_MAX:
            oldest, since_s = next(iter(self._guests.items()))
            self._left.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(since_s + HONEST_S - self._loop.time()):
                    await self._left.wait()
                continue
            oldest.cancel()
            self._guests.pop(oldest, None)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._guests.pop(task, None)
        self._left.set()

    async def _prove(self, sock: socket.socket) -> None:
        """Ends when the caller is a guest no more, proven or not."""
        sock.setblocking(False)
        proof = prove_as_listener(self._keys.token, self._purpose)
        tls = self._keys.tls.listening if self._keys.tls else None
        transport: asyncio.BaseTransport | None = None
        proven = False
        try:
            async with asyncio.timeout(PROVE_S):
                transport, proving = await self._loop.connect_accepted_socket(
                    lambda: Proving(proof, self._on_proved), sock, ssl=tls
                )
                await proving.done
            proven = True
        except (NotProved, OSError):  # a stranger is nothing to tell anybody of: it could fill the journal
            pass
        finally:
            if not proven:
                if isinstance(transport, asyncio.Transport):
                    transport.abort()
                else:
                    sock.close()


async def serve(address: Address, keys: Keys, kinds: Any, on_connection: Callable[[Connection], Ears]) -> Listener:
    """Listen there (port 0: any that is free); ``on_connection`` says who hears the words, of ``kinds``.

    Raises:
        OSError: the address cannot be had.
    """
    buffer = memoryview(bytearray(READ_BYTES))

    def hand_out(transport: asyncio.Transport) -> None:
        connection = Connection(transport, kinds, buffer)
        transport.set_protocol(connection)
        connection.hear(on_connection(connection))

    return Listener(listening_socket(address), keys, LINK, hand_out)


def listening_socket(address: Address) -> socket.socket:
    """A socket that listens there.

    Raises:
        OSError: the address cannot be had; says which.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listening = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
    listening.setblocking(False)
    return listening
