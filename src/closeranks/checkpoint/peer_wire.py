"""What a peer that keeps copies in memory and its users say to each other over TCP.

First both prove that they know the run's token (``nodes/handshake.py``), then the user asks and the peer answers. A
frame is a 4-byte length and a msgpack body of at most ``FRAME_LIMIT_BYTES``; the bytes of objects follow their frame
as they are. Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from closeranks.checkpoint.problems import StoreRefused
from closeranks.nodes.handshake import NotProved, Proof, prove_as_caller, prove_as_listener

FRAME_LIMIT_BYTES: Final = 2**20
ROWS_MAX: Final = 1000  # of one answer to a listing
KEYS_MAX: Final = 1000  # of one request to delete
PIECE_BYTES: Final = 2**20
_PURPOSE: Final = b"crpeer02"
_LENGTH: Final = struct.Struct(">I")

_S = TypeVar("_S", bound=msgspec.Struct)


class Address(NamedTuple):
    """Where a peer listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class Put(_Frame, frozen=True, tag="put"):
    """Keep an object that is not there yet. Its bytes are sent after the peer said Go."""

    key: str
    length: int


class Get(_Frame, frozen=True, tag="get"):
    """Some bytes of an object; they follow the Data frame. ``length`` None: all, but at most ``limit``."""

    key: str
    begin: int = 0
    length: int | None = None
    limit: int = 0


class Rows(_Frame, frozen=True, tag="rows"):
    """Objects whose key begins with the prefix and is greater than ``after``: the first ``ROWS_MAX``."""

    prefix: str
    after: str


class Drop(_Frame, frozen=True, tag="drop"):
    """Forget objects."""

    keys: tuple[str, ...]


class Answer(_Frame, frozen=True, tag="answer"):
    """``go``: send, it was done, or what follows; the others say why not."""

    outcome: Literal["go", "exists", "absent", "full", "invalid"]
    detail: str = ""
    length: int = 0  # of the bytes that follow, or that were kept
    rows: tuple[tuple[str, int, float], ...] = ()
    more: bool = False  # rows are left


Request = Put | Get | Rows | Drop


class WireError(Exception):
    """The other side closed the connection or sent what is no frame."""


def challenge(sock: socket.socket, token: str) -> bool:
    """The peer's part of the proof; False when the other side does not know the token."""
    try:
        follow(prove_as_listener(token, _PURPOSE), sock)
    except NotProved:
        return False
    return True


def introduce(sock: socket.socket, token: str, address: Address) -> None:
    """The user's part of the proof.

    Raises:
        StoreRefused: what listens there is no peer of this run.
        WireError: it says nothing; it may be about to end.
    """
    try:
        follow(prove_as_caller(token, _PURPOSE), sock)
    except NotProved as problem:
        raise StoreRefused(f"peer {address}: {problem}") from problem


def follow(proof: Proof, sock: socket.socket) -> None:
    """Carry a proof out over a connection.

    Raises:
        NotProved: the other end does not hold the token.
        WireError: it says nothing.
    """
    step = next(proof)
    with contextlib.suppress(StopIteration):
        while True:
            sock.sendall(step.send)
            try:
                answer = receive(sock, step.answer_bytes)
            except WireError as error:
                if step.hung_up:
                    raise NotProved(step.hung_up) from error
                raise
            step = proof.send(answer)


def send(sock: socket.socket, frame: msgspec.Struct) -> None:
    """Send one frame."""
    body = msgspec.msgpack.encode(frame)
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive_frame(sock: socket.socket, kinds: type[_S] | object) -> object:
    """The next frame.

    Raises:
        WireError: the connection is closed or of no use any more.
    """
    (length,) = _LENGTH.unpack(receive(sock, _LENGTH.size))
    if length > FRAME_LIMIT_BYTES:
        raise WireError(f"a frame of {length} bytes was announced, at most {FRAME_LIMIT_BYTES} are allowed")
    try:
        return msgspec.msgpack.decode(receive(sock, length), type=kinds)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise WireError(f"an unreadable frame: {error}") from error


def receive(sock: socket.socket, length: int) -> bytes:
    """Exactly so many bytes; the caller has bounded them. Raises WireError."""
    data = bytearray(length)
    fill(sock, memoryview(data))
    return bytes(data)


def fill(sock: socket.socket, target: memoryview) -> None:
    """Fill the target. The socket's timeout counts for each piece that arrives. Raises WireError."""
    while target:
        count = sock.recv_into(target)
        if not count:
            raise WireError("the connection was closed")
        target = target[count:]
