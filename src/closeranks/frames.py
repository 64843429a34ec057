"""Messages on a byte stream: a 4-byte big-endian length and a msgpack body, at most ``MAX_FRAME_BYTES``."""

from __future__ import annotations

import functools
import struct
from typing import Any, Generic, TypeVar

import msgspec

MAX_FRAME_BYTES = 16 * 2**20
_LENGTH = struct.Struct(">I")

M = TypeVar("M", bound=msgspec.Struct)


class FrameError(Exception):
    """The peer sent bytes that are no message; the connection cannot be used any further."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """One frame, ready to be written."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} of {len(body)} bytes, at most {MAX_FRAME_BYTES} fit a frame")
    return _LENGTH.pack(len(body)) + body


@functools.cache  # half of what a new connection costs, and a thousand may come at once
def _decoder_of(kinds: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kinds)


class Decoder(Generic[M]):
    """Cuts a byte stream into messages: feed it what was read, take what is complete."""

    def __init__(self, kinds: Any) -> None:  # a union, as msgspec takes it
        self._decoder: msgspec.msgpack.Decoder[M] = _decoder_of(kinds)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages completed by ``data``.

        Raises:
            FrameError: a length beyond the bound or a body that is no message; drop the connection.
        """
        self._buffer += data
        messages: list[M] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"frame of {length} bytes announced, at most {MAX_FRAME_BYTES} are allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                messages.append(self._decoder.decode(body))
            except (msgspec.ValidationError, msgspec.DecodeError) as error:
                raise FrameError(f"unreadable message: {error}") from error
        return messages
