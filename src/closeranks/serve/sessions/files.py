"""Streams in a folder that several gateway processes share: one file each, appended under a lock."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from closeranks.serve.sessions.record import (
    Claimed,
    Entry,
    Head,
    decode_entries,
    decode_head,
    encode_entries,
    encode_head,
)
from closeranks.serve.sessions.store import StoreError

T = TypeVar("T")

_FRAME: Final = struct.Struct("<I")
_GENERATION: Final = struct.Struct("<Q")
_FRAME_BYTES_MAX: Final = 64 * 2**20


class FileStreams:
    """Survives every process of this machine, and the machine as far as its file system does.

    A file is a generation, then frames of four bytes of length and the bytes: the head, then batches. A frame that is
    not whole was being written when its writer died; it is cut off by the next one that claims the stream.
    """

    def __init__(self, folder: Path, keep_s: float) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._keep_s = keep_s
        self._swept_s = 0.0

    async def begin(self, head: Head) -> int:
        """See StreamStore."""
        await self._in_thread(self._begin, head)
        return 1

    async def append(self, stream: str, generation: int, entries: list[Entry]) -> bool:
        """See StreamStore."""
        return await self._in_thread(self._append, stream, generation, entries)

    async def claim(self, stream: str) -> Claimed | None:
        """See StreamStore."""
        return await self._in_thread(self._claim, stream)

    async def close(self) -> None:
        """See StreamStore."""

    async def _in_thread(self, do: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.to_thread(do, *arguments)
        except (OSError, msgspec.DecodeError) as error:
            raise StoreError(f"{self._folder}: {error}") from error

    def _begin(self, head: Head) -> None:
        self._sweep()
        data = encode_head(head)
        descriptor = os.open(self._path(head.stream), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_GENERATION.pack(1) + _FRAME.pack(len(data)) + data)

    def _append(self, stream: str, generation: int, entries: list[Entry]) -> bool:
        data = encode_entries(entries)
        with self._locked(stream) as descriptor:
            if descriptor is None or _generation(descriptor) != generation:
                return False
            os.lseek(descriptor, 0, os.SEEK_END)
            os.write(descriptor, _FRAME.pack(len(data)) + data)
        return True

    def _claim(self, stream: str) -> Claimed | None:
        with self._locked(stream) as descriptor:
            if descriptor is None:
                return None
            generation = _generation(descriptor) + 1
            frames, end = _frames(descriptor)
            if not frames:
                return None
            os.ftruncate(descriptor, end)
            os.pwrite(descriptor, _GENERATION.pack(generation), 0)
        return Claimed(head=decode_head(frames[0]), entries=decode_entries(frames[1:]), generation=generation)

    @contextlib.contextmanager
    def _locked(self, stream: str) -> Iterator[int | None]:
        try:
            descriptor = os.open(self._path(stream), os.O_RDWR)
        except FileNotFoundError:
            yield None
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _path(self, stream: str) -> Path:
        return self._folder / f"{stream}.stream"

    def _sweep(self) -> None:
        """Delete what nobody has touched for long; looked for once in a while."""
        now_s = time.time()
        if now_s < self._swept_s + self._keep_s / 4:
            return
        self._swept_s = now_s
        for path in self._folder.glob("*.stream"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < now_s - self._keep_s:
                    path.unlink()


def _generation(descriptor: int) -> int:
    data = os.pread(descriptor, _GENERATION.size, 0)
    return int(_GENERATION.unpack(data)[0]) if len(data) == _GENERATION.size else 0


def _frames(descriptor: int) -> tuple[list[bytes], int]:
    """All whole frames, and where they end."""
    size, at = os.fstat(descriptor).st_size, _GENERATION.size
    frames: list[bytes] = []
    while at + _FRAME.size <= size:
        (length,) = _FRAME.unpack(os.pread(descriptor, _FRAME.size, at))
        if length > _FRAME_BYTES_MAX or at + _FRAME.size + length > size:
            break
        frames.append(os.pread(descriptor, length, at + _FRAME.size))
        at += _FRAME.size + length
    return frames, at
