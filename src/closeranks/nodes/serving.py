"""The listening end: accepts, has callers prove themselves, and hands out connections.

A stranger costs one of a bounded number of places for a few seconds. When all are taken, whoever has been proving for
longest makes room, but not before it had time enough for an honest proof; until then newcomers wait in the kernel.
However many there are, most of the descriptors that the process may open are left to its own work.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from closeranks.nodes.handshake import LINK, Keys, NotProved, prove_as_listener
from closeranks.nodes.link import READ_BYTES, Connection, Ears
from closeranks.nodes.proving import PROVE_S, Proving
from closeranks.nodes.words import Address

GUESTS_MAX: Final = 1024  # connections to a leader that have not proved themselves
_SHARE: Final = 8  # one descriptor in so many, at most, is a guest's
HONEST_S: Final = 2.0  # a guest has so long before it may be asked to make room
_BACKLOG: Final = 4096  # all nodes of a large job call a new leader at once
_ACCEPTS_AT_ONCE: Final = 64  # then peers have their turn
_OUT_OF_PLACES_S: Final = 0.1
_OUT_OF_PLACES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

OnProved = Callable[[asyncio.Transport], None]


class _Guest(NamedTuple):
    sock: socket.socket
    since_s: float


class Listener:
    """A listening socket whose callers prove themselves. ``address`` is the real one, with its port."""

    def __init__(
        self, listening: socket.socket, keys: Keys, purpose: bytes, on_proved: OnProved, guests_max: int
    ) -> None:
        """``guests_max``: connections that have not proved themselves; fewer where descriptors are scarce."""
        host, port, *_ = listening.getsockname()
        self.address = Address(host=host, port=port)
        self._socket = listening
        self._keys = keys
        self._purpose = purpose
        self._on_proved = on_proved
        self._guests_max = min(guests_max, _affordable())
        self._loop = asyncio.get_running_loop()
        self.strangers = 0  # connections that did not prove themselves
        self._guests: dict[asyncio.Task[bool], _Guest] = {}  # oldest first
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._accept)

    @property
    def guests(self) -> int:
        """Connections that have not proved themselves yet."""
        return len(self._guests)

    async def close(self) -> None:
        """Listen no more, and send guests away; connections that were handed out stay."""
        self._stop_accepting()
        guests = tuple(self._guests)
        for task in guests:
            task.cancel()
        await asyncio.gather(*guests, return_exceptions=True)
        self._stop_accepting()  # a guest that left may have begun it again
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            if len(self._guests) >= self._guests_max:
                oldest = next(iter(self._guests.values()))
                self._accept_again(oldest.since_s + HONEST_S)
                return
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Otherwise a caller that is gone again; with no descriptor left, somebody must leave first.
                if error.errno in _OUT_OF_PLACES:
                    self._accept_again(self._loop.time() + _OUT_OF_PLACES_S)
                return
            task = self._loop.create_task(self._prove(sock))
            self._guests[task] = _Guest(sock, self._loop.time())
            task.add_done_callback(self._leave)

    def _accept_again(self, at_s: float) -> None:
        self._stop_accepting()
        self._pause = self._loop.call_at(at_s, self._go_on)

    def _stop_accepting(self) -> None:
        if self._socket.fileno() >= 0:  # not closed yet
            self._loop.remove_reader(self._socket)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _go_on(self) -> None:
        self._stop_accepting()
        if len(self._guests) >= self._guests_max:
            next(iter(self._guests)).cancel()  # its place is free when it has left
        else:
            self._loop.add_reader(self._socket, self._accept)

    def _leave(self, task: asyncio.Task[bool]) -> None:
        guest = self._guests.pop(task)
        if task.cancelled() or not task.result():
            self.strangers += 1
            guest.sock.close()
        if self._pause is not None or len(self._guests) == self._guests_max - 1:
            self._go_on()

    async def _prove(self, sock: socket.socket) -> bool:
        """Ends when the caller is a guest no more; whether it is a peer now."""
        sock.setblocking(False)
        proving = Proving(prove_as_listener(self._keys.token, self._purpose), self._on_proved)
        tls = self._keys.tls.listening if self._keys.tls else None
        proven = False
        try:
            async with asyncio.timeout(PROVE_S):
                await self._loop.connect_accepted_socket(lambda: proving, sock, ssl=tls)
                await proving.done
            proven = True
        except (NotProved, OSError):  # counted, not told one by one: a stranger could fill the journal
            pass
        finally:
            if not proven:
                proving.give_up()
        return proven


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

    return Listener(listening_socket(address), keys, LINK, hand_out, GUESTS_MAX)


def _affordable() -> int:
    """How many guests this process can have and still open what it needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return GUESTS_MAX if soft == resource.RLIM_INFINITY else max(1, soft // _SHARE)


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
