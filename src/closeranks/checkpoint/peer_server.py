"""The peer's side: a process that keeps objects of other nodes in its memory, up to a bound, for one run."""

from __future__ import annotations

import bisect
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from closeranks.checkpoint import peer_wire as wire
from closeranks.checkpoint.peer_wire import Address, Answer, WireError
from closeranks.checkpoint.problems import StoreProblem
from closeranks.checkpoint.stores.keys import checked_key, checked_prefix
from closeranks.run.linux import die_with_parent

_CONNECTIONS_MAX: Final = 256
_INTRODUCE_S: Final = 5.0
_TRANSFER_S: Final = 30.0  # a user that sends or takes nothing for so long in mid-object is gone
_PARENT_GONE: Final = signal.SIGUSR1
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class _Shelf:
    """Objects under their keys. Room is reserved before bytes arrive, so that the bound always holds."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytearray, float]] = {}
        self._keys: list[str] = []
        self._coming: set[str] = set()
        self.used_bytes = 0  # reserved ones included

    def reserve(self, key: str, length: int) -> Answer:
        with self._lock:
            if key in self._objects or key in self._coming:
                return Answer(outcome="exists")
            if length < 0 or self.used_bytes + length > self._limit_bytes:
                free_bytes = self._limit_bytes - self.used_bytes
                return Answer(
                    outcome="full",
                    detail=f"expected room for {length:,} bytes, got {free_bytes:,} of {self._limit_bytes:,} free; "
                    "give peers more memory or keep fewer saves there",
                )
            self.used_bytes += length
            self._coming.add(key)
            return Answer(outcome="go")

    def keep(self, key: str, data: bytearray) -> None:
        with self._lock:
            self._coming.discard(key)
            self._objects[key] = (data, time.time())
            bisect.insort(self._keys, key)

    def release(self, key: str, length: int) -> None:
        """What was reserved did not come."""
        with self._lock:
            self._coming.discard(key)
            self.used_bytes -= length

    def find(self, key: str) -> bytearray | None:
        with self._lock:
            return self._objects.get(key, (None, 0.0))[0]

    def rows(self, prefix: str, after: str) -> Answer:
        with self._lock:
            first = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, after))
            found = self._keys[first : first + wire.ROWS_MAX + 1]
            keys = [key for key in found if key.startswith(prefix)]
            rows = tuple((key, len(self._objects[key][0]), self._objects[key][1]) for key in keys[: wire.ROWS_MAX])
            return Answer(outcome="go", rows=rows, more=len(keys) > wire.ROWS_MAX)

    def drop(self, keys: tuple[str, ...]) -> None:
        with self._lock:
            for key in keys:
                data, _ = self._objects.pop(key, (None, 0.0))
                if data is not None:
                    self.used_bytes -= len(data)
                    del self._keys[bisect.bisect_left(self._keys, key)]


class PeerServer:
    """Listens from construction on; one thread for each connection, a bounded number of them."""

    def __init__(self, token: str, limit_bytes: int, host: str = "127.0.0.1", port: int = 0) -> None:
        """``limit_bytes`` of objects are kept at most; ``port`` 0: any that is free.

        Raises:
            ValueError: the token is empty.
            OSError: the address cannot be had.
        """
        if not token:
            raise ValueError("a peer needs the token of its run: without one anybody could read the model")
        self._token = token
        self._shelf = _Shelf(limit_bytes)
        self._slots = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._listener = socket.create_server((host, port), family=_family(host), backlog=_CONNECTIONS_MAX)
        self.address = Address(host, self._listener.getsockname()[1])

    @property
    def used_bytes(self) -> int:
        """Memory in use for objects, those that are just arriving included."""
        return self._shelf.used_bytes

    def serve(self) -> None:
        """Answer until ``close``."""
        while True:
            self._slots.acquire()
            try:
                sock, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._converse, args=(sock,), daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are open end with their users or with the process."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _converse(self, sock: socket.socket) -> None:
        try:
            with sock, contextlib.suppress(OSError, WireError):
                sock.settimeout(_INTRODUCE_S)
                _keep_alive(sock)
                if wire.challenge(sock, self._token):
                    self._answer_all(sock)
        finally:
            self._slots.release()

    def _answer_all(self, sock: socket.socket) -> None:
        while True:
            sock.settimeout(None)  # idle connections may stay; a dead machine is noticed by keep-alive probes
            length = sock.recv(1, socket.MSG_PEEK)
            if not length:
                return
            sock.settimeout(_TRANSFER_S)
            request = wire.receive_frame(sock, wire.Request)
            try:
                self._answer(sock, request)
            except StoreProblem as problem:  # a key that is none
                wire.send(sock, Answer(outcome="invalid", detail=str(problem)))

    def _answer(self, sock: socket.socket, request: object) -> None:
        match request:
            case wire.Put():
                self._take(sock, checked_key(request.key, "peer"), request.length)
            case wire.Get():
                self._give(sock, request)
            case wire.Rows():
                wire.send(sock, self._shelf.rows(checked_prefix(request.prefix, "peer"), request.after))
            case wire.Drop():
                self._shelf.drop(request.keys)
                wire.send(sock, Answer(outcome="go"))

    def _take(self, sock: socket.socket, key: str, length: int) -> None:
        answer = self._shelf.reserve(key, length)
        if answer.outcome != "go":
            wire.send(sock, answer)
            return
        try:
            wire.send(sock, answer)
            data = bytearray(length)
            wire.fill(sock, memoryview(data))
        except BaseException:
            self._shelf.release(key, length)
            raise
        self._shelf.keep(key, data)
        wire.send(sock, Answer(outcome="go", length=length))

    def _give(self, sock: socket.socket, request: wire.Get) -> None:
        data = self._shelf.find(request.key)
        if data is None:
            wire.send(sock, Answer(outcome="absent", detail="expected an object, got none; this peer may be new"))
            return
        length = len(data) - request.begin if request.length is None else request.length
        if request.length is None and length > request.limit:
            wire.send(sock, Answer(outcome="absent", detail=f"{length:,} bytes, expected {request.limit:,} at most"))
        elif request.begin < 0 or length < 0 or request.begin + length > len(data):
            wire.send(
                sock, Answer(outcome="absent", detail=f"expected {request.begin + length:,} bytes, got {len(data):,}")
            )
        else:
            wire.send(sock, Answer(outcome="go", length=length))
            with memoryview(data)[request.begin : request.begin + length] as view:
                for begin in range(0, length, wire.PIECE_BYTES):
                    sock.sendall(view[begin : begin + wire.PIECE_BYTES])


# --- as a process -----------------------------------------------------------------------------------------------


class _Start(msgspec.Struct, frozen=True):
    token: str
    limit_bytes: int
    host: str
    port: int
    parent_pid: int


class PeerProcess:
    """A peer in a process of its own, so that what it keeps survives the keeper and the trainers of its node."""

    def __init__(self, address: Address, process: subprocess.Popen[bytes]) -> None:
        self.address = address
        self.process = process

    def close(self) -> None:
        """End it; what it kept is gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def start_peer(token: str, limit_bytes: int, host: str = "127.0.0.1", port: int = 0) -> PeerProcess:
    """Start a peer; it ends with this process.

    Raises:
        OSError: it could not be started or cannot listen there; says why.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "closeranks.checkpoint.peer_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    start = _Start(token=token, limit_bytes=limit_bytes, host=host, port=port, parent_pid=os.getpid())
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(start) + b"\n")  # not as arguments, which everybody can read
    process.stdin.flush()
    words = process.stdout.readline().decode().split(maxsplit=1)
    if words[:1] != ["port"]:
        peer = PeerProcess(Address(host, port), process)
        peer.close()
        raise OSError(f"no peer at {Address(host, port)}: {' '.join(words) or 'it ended without a word'}")
    return PeerProcess(Address(host, int(words[1])), process)


def main() -> int:
    """``python -P -m closeranks.checkpoint.peer_server``: started by ``start_peer``."""
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Start)

    def ask_parent(_number: int, _frame: object) -> None:
        if os.getppid() != start.parent_pid:  # the kernel also asks when only a thread of it has ended
            os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(_PARENT_GONE, ask_parent)
    if not die_with_parent(start.parent_pid, _PARENT_GONE):
        return 0
    try:
        server = PeerServer(start.token, start.limit_bytes, start.host, start.port)
    except (OSError, ValueError) as error:
        sys.stdout.write(f"{error}\n")
        sys.stdout.flush()
        return 1
    sys.stdout.write(f"port {server.address.port}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve, daemon=True).start()
    for _ in _lines():
        pass
    os._exit(0)  # its parent closed the pipe, or ended


def _lines() -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        yield from sys.stdin.buffer


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


if __name__ == "__main__":
    sys.exit(main())
