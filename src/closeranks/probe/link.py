"""A link to a peer: how long a word takes, and how many bytes it carries in a second.

Both ends prove that they hold the token before either sends more than 72 bytes.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from typing import Final

from closeranks.checkpoint.peer_wire import Address, WireError, fill, follow, receive
from closeranks.nodes.handshake import NotProved, prove_as_caller, prove_as_listener
from closeranks.probe.outcome import Failed, Outcome, Passed

_PURPOSE: Final = b"crcheck1"
_REQUEST: Final = struct.Struct(">Q")  # bytes that follow; the answer is the same number
_PIECE_BYTES: Final = 2**20
_MOST_BYTES: Final = 2**30  # of one request
_WORDS: Final = 50
_WITHIN_S: Final = 10.0


def check_link(address: Address, token: str, size_bytes: int, least_mib_s: float = 0.0) -> Outcome:
    """Connect to a peer that serves, send it words and then ``size_bytes``. Failed below the bound, if one is set."""
    try:
        with socket.create_connection(address, timeout=_WITHIN_S) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            follow(prove_as_caller(token, _PURPOSE), sock)
            word_s = statistics.median(_ask(sock, 0) for _ in range(_WORDS))
            took_s = _ask(sock, min(size_bytes, _MOST_BYTES))
    except (OSError, WireError, NotProved) as error:
        return Failed(f"link to {address}: {error}")
    rate = size_bytes / 2**20 / max(took_s, 1e-9)
    told = f"{rate:.0f} MiB/s to {address}, a word there and back takes {word_s * 1e6:.0f} us"
    if rate < least_mib_s:
        return Failed(f"{told}; expected at least {least_mib_s:g} MiB/s")
    return Passed(told)


def check_loopback(size_bytes: int) -> Outcome:
    """The same with ourselves: all that can be said without a peer."""
    token = secrets.token_hex(16)
    try:
        with serving(Address("127.0.0.1", 0), token) as address:
            return check_link(address, token, size_bytes)
    except OSError as error:
        return Failed(f"nothing can listen on the loopback address: {error.strerror}")


@contextlib.contextmanager
def serving(address: Address, token: str) -> Iterator[Address]:
    """Answer callers that hold the token, one after the other, until the block ends. Yields the real address.

    Raises:
        OSError: the address cannot be had.
    """
    with socket.create_server(address) as listening:
        host, port, *_ = listening.getsockname()
        thread = threading.Thread(target=_serve, args=(listening, token), name="probe-link", daemon=True)
        thread.start()
        try:
            yield Address(host, port)
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # wakes the thread
            thread.join(_WITHIN_S)


def _serve(listening: socket.socket, token: str) -> None:
    while True:
        try:
            sock, _ = listening.accept()
        except OSError:
            return
        with sock, contextlib.suppress(OSError, WireError, NotProved):  # the caller says what went wrong
            sock.settimeout(_WITHIN_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            follow(prove_as_listener(token, _PURPOSE), sock)
            piece = memoryview(bytearray(_PIECE_BYTES))
            while True:
                request = receive(sock, _REQUEST.size)
                left = min(_REQUEST.unpack(request)[0], _MOST_BYTES)
                while left:
                    part = piece[: min(left, _PIECE_BYTES)]
                    fill(sock, part)
                    left -= len(part)
                sock.sendall(request)


def _ask(sock: socket.socket, size_bytes: int) -> float:
    """Seconds until the peer says that it has all of it."""
    began_s = time.monotonic()
    request = _REQUEST.pack(size_bytes)
    sock.sendall(request)
    piece = memoryview(bytes(min(size_bytes, _PIECE_BYTES)))
    left = size_bytes
    while left:
        part = piece[: min(left, _PIECE_BYTES)]
        sock.sendall(part)
        left -= len(part)
    if receive(sock, _REQUEST.size) != request:
        raise WireError("the peer answered for another number of bytes")
    return time.monotonic() - began_s
