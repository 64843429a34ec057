"""Memory of other nodes as a home: a server that keeps objects while it lives, and the store that talks to it."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from closeranks.checkpoint import peer_wire as wire
from closeranks.checkpoint.peer_wire import Address, Answer, WireError
from closeranks.checkpoint.problems import Damaged, StoreProblem, StoreRefused
from closeranks.checkpoint.stores.store import Buffer, Listed, OnPiece

CONNECT_S: Final = 3.0
PATIENCE_S: Final = 10.0
_IDLE_MAX: Final = 4  # connections kept open between requests
_T = TypeVar("_T")


def address_of(text: str) -> Address:
    """``host:port``, an IPv6 address in brackets.

    Raises:
        StoreRefused: it is not that.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 2**16):
        raise StoreRefused(f'peer {text!r}: expected "host:port", such as 10.0.0.7:7000 or [fd00::7]:7000')
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


class PeerStore:
    """One peer's memory. Nothing is connected before the first request."""

    def __init__(
        self, address: Address, token: str, *, connect_s: float = CONNECT_S, patience_s: float = PATIENCE_S
    ) -> None:
        """``patience_s``: a peer that takes or gives nothing for so long counts as lost."""
        self.url = f"peer {address}"
        self._address, self._token = address, token
        self._connect_s, self._patience_s = connect_s, patience_s
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()

    def create(self, key: str, data: bytes) -> bool:
        """See Store. Durable here means: in the memory of that process."""
        return self._put(key, [memoryview(data)], None)

    def write(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None = None) -> int:
        """See Store."""
        views = [part.cast("B") for part in parts]
        if not self._put(key, views, on_piece):
            raise StoreProblem(f"{self.url}: {key}: expected no such object, got one; it was left alone")
        return sum(len(view) for view in views)

    def read_into(self, key: str, begin: int, target: Buffer) -> None:
        """See Store."""
        view = target.cast("B")

        def ask(sock: socket.socket) -> None:
            self._asked(sock, wire.Get(key=key, begin=begin, length=len(view)), key)
            wire.fill(sock, view)

        self._exchange(key, ask)

    def read(self, key: str, limit_bytes: int) -> bytes:
        """See Store."""

        def ask(sock: socket.socket) -> bytes:
            answer = self._asked(sock, wire.Get(key=key, limit=limit_bytes), key)
            if not 0 <= answer.length <= limit_bytes:
                raise WireError(f"expected at most {limit_bytes} bytes, {answer.length} were announced")
            return wire.receive(sock, answer.length)

        return self._exchange(key, ask)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """See Store."""
        more = True
        while more:
            request = wire.Rows(prefix=prefix, after=after)
            answer = self._exchange(prefix, lambda sock, request=request: self._asked(sock, request, prefix))  # type: ignore[misc]
            yield from (Listed(*row) for row in answer.rows)
            more = answer.more and bool(answer.rows)
            after = answer.rows[-1][0] if answer.rows else after

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        left = iter(keys)
        while some := tuple(islice(left, wire.KEYS_MAX)):
            request = wire.Drop(keys=some)
            self._exchange(some[0], lambda sock, request=request: self._asked(sock, request, request.keys[0]))  # type: ignore[misc]

    def close(self) -> None:
        """Close the connections. What the peer keeps stays there."""
        with self._lock:
            idle, self._idle = self._idle, []
        for sock in idle:
            sock.close()

    def _put(self, key: str, views: Sequence[Buffer], on_piece: OnPiece | None) -> bool:
        length = sum(len(view) for view in views)

        def send(sock: socket.socket) -> bool:
            if self._asked(sock, wire.Put(key=key, length=length), key).outcome == "exists":
                return False
            at = 0
            for view in views:
                for begin in range(0, len(view), wire.PIECE_BYTES):
                    piece = view[begin : begin + wire.PIECE_BYTES]
                    if on_piece is not None:
                        on_piece(at, piece)
                    sock.sendall(piece)
                    at += len(piece)
            self._answered(sock, key)
            return True

        return self._exchange(key, send, doubtful=True)

    def _asked(self, sock: socket.socket, request: wire.Request, key: str) -> Answer:
        wire.send(sock, request)
        return self._answered(sock, key)

    def _answered(self, sock: socket.socket, key: str) -> Answer:
        answer = wire.receive_frame(sock, Answer)
        assert isinstance(answer, Answer)
        match answer.outcome:
            case "absent":
                raise Damaged(f"{self.url}: {key}: {answer.detail}", object_key=key)
            case "full" | "invalid":
                raise StoreProblem(f"{self.url}: {key}: {answer.detail}")
        return answer

    def _exchange(self, key: str, ask: Callable[[socket.socket], _T], *, doubtful: bool = False) -> _T:
        """Ask over a connection of our own; one that broke is closed, never used again."""
        sock = self._connected()
        try:
            result = ask(sock)
        except (Damaged, StoreProblem):
            self._give_back(sock)  # an answer like any other: the connection is sound
            raise
        except (OSError, WireError) as error:
            sock.close()
            what = f"nothing for {self._patience_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise StoreProblem(f"{self.url}: {key}: {what}", transient=True, doubtful=doubtful) from error
        except BaseException:
            sock.close()
            raise
        self._give_back(sock)
        return result

    def _connected(self) -> socket.socket:
        with self._lock:
            while self._idle:
                sock = self._idle.pop()
                if _is_alive(sock):
                    return sock
                sock.close()
        try:
            sock = socket.create_connection(self._address, self._connect_s)
        except OSError as error:
            raise StoreProblem(f"{self.url}: cannot be reached: {error}", transient=True) from error
        try:
            sock.settimeout(self._patience_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.introduce(sock, self._token, self._address)
        except (OSError, WireError) as error:
            sock.close()
            raise StoreProblem(f"{self.url}: does not introduce itself: {error}", transient=True) from error
        except BaseException:
            sock.close()
            raise
        return sock

    def _give_back(self, sock: socket.socket) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_MAX:
                self._idle.append(sock)
                return
        sock.close()


def _is_alive(sock: socket.socket) -> bool:
    """Whether an idle connection is still open: the peer says nothing unasked, so anything to read is its end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)
