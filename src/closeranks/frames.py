"""Messages on a byte stream: a 4-byte big-endian length and a msgpack body, at most ``MAX_FRAME_BYTES``.

A length with its highest bit set belongs to frames that were ``packed`` into one.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

MAX_FRAME_BYTES = 16 * 2**20
_LENGTH = struct.Struct(">I")
_PACKED: Final = 2**31
_WORTH_PACKING_BYTES: Final = 2**14
_PACKING_LEVEL: Final = 1  # the fastest: lists of thousands of seats shrink to a tenth even so

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


def packed(frames: bytes) -> bytes:
    """The same frames, compressed where they are long: what is told to a thousand nodes repeats itself."""
    if not _WORTH_PACKING_BYTES <= len(frames) <= MAX_FRAME_BYTES:
        return frames
    body = zlib.compress(frames, _PACKING_LEVEL)
    return _LENGTH.pack(_PACKED | len(body)) + body


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
        if not self._buffer and _is_one_frame(data):  # nearly always
            return [self._decoded(data[_LENGTH.size :])]
        self._buffer += data
        messages: list[M] = []
        for body, is_packed in _cut(self._buffer):
            if not is_packed:
                messages.append(self._decoded(body))
                continue
            frames = _unpacked(body)
            for inner, packed_again in _cut(frames):
                if packed_again:
                    raise FrameError("frames that are packed twice: expected messages in what was packed")
                messages.append(self._decoded(inner))
            if frames:
                raise FrameError(f"packed frames end in the middle of one, {len(frames)} bytes are left")
        return messages

    def _decoded(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise FrameError(f"unreadable message: {error}") from error


def _is_one_frame(data: bytes) -> bool:
    """Whether it is all of one frame that is not packed."""
    return len(data) >= _LENGTH.size and _LENGTH.unpack_from(data)[0] == len(data) - _LENGTH.size <= MAX_FRAME_BYTES


def _cut(buffer: bytearray) -> Iterator[tuple[bytes, bool]]:
    """Takes the complete frames out of the buffer: the body of each, and whether it is packed."""
    while len(buffer) >= _LENGTH.size:
        (told,) = _LENGTH.unpack_from(buffer)
        length = told & ~_PACKED
        if length > MAX_FRAME_BYTES:
            raise FrameError(f"frame of {told} bytes announced, at most {MAX_FRAME_BYTES} are allowed")
        end = _LENGTH.size + length
        if len(buffer) < end:
            return
        body = bytes(buffer[_LENGTH.size : end])
        del buffer[:end]
        yield body, told != length


def _unpacked(body: bytes) -> bytearray:
    inflating = zlib.decompressobj()
    try:
        frames = bytearray(inflating.decompress(body, MAX_FRAME_BYTES))
    except zlib.error as error:
        raise FrameError(f"packed frames cannot be read: {error}") from error
    if not inflating.eof:
        raise FrameError(f"packed frames: expected at most {MAX_FRAME_BYTES} bytes and their end, got more or none")
    return frames
