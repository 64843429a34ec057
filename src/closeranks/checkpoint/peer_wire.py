"""What a peer that keeps copies in memory and its users say to each other over TCP.

First both prove that they know the run's token (HMAC-SHA256 over both nonces, so nothing is replayed and the token does
not travel), then the user asks and the peer answers. A frame is a 4-byte length and a msgpack body of at most
``FRAME_LIMIT_BYTES``; the bytes of objects follow their frame as they are. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from closeranks.checkpoint.problems import StoreRefused

FRAME_LIMIT_BYTES: Final = 2**20
ROWS_MAX: Final = 1000  # of one answer to a listing
KEYS_MAX: Final = 1000  # of one request to delete
PIECE_BYTES: Final = 2**20
_MAGIC: Final = b"crpeer01"
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
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
    nonce = secrets.token_bytes(_NONCE_BYTES)
    sock.sendall(_MAGIC + nonce)
    answer = receive(sock, _NONCE_BYTES + _PROOF_BYTES)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"user", nonce, theirs)):
        return False
    sock.sendall(_proof(token, b"peer", nonce, theirs))
    return True


def introduce(sock: socket.socket, token: str, address: Address) -> None:
    """The user's part of the proof.

    Raises:
        StoreRefused: what listens there is no peer of this run.
    """
    greeting = receive(sock, len(_MAGIC) + _NONCE_BYTES)
    if not greeting.startswith(_MAGIC):
        raise StoreRefused(f"peer {address}: expected {_MAGIC!r}, got {greeting[:8]!r}: something else listens there")
    theirs, nonce = greeting[len(_MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
    sock.sendall(nonce + _proof(token, b"user", theirs, nonce))
    refused = f"peer {address}: the token was refused: it belongs to another run, or a newer start of this one"
    try:
        proof = receive(sock, _PROOF_BYTES)
    except WireError as error:
        raise StoreRefused(refused) from error
    if not hmac.compare_digest(proof, _proof(token, b"peer", theirs, nonce)):
        raise StoreRefused(refused)


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


def _proof(token: str, role: bytes, peers_nonce: bytes, users_nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), role + peers_nonce + users_nonce, "sha256")
