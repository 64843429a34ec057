"""Results of set-up collectives, recorded once and replayed to a newcomer.

A newcomer runs the script from its top while the others sit in the loop: its barriers, broadcasts and object lists
have no peers. It receives what the first occupant of its seat received, in the same order. Tensors that DDP moves
are not kept: the newcomer gets them from a donor.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from types import FrameType
from typing import Any

import msgspec
import torch

MAX_RECORD_BYTES = 64 * 2**20
_HEADER = struct.Struct(">8sQ")
_MAGIC = b"crsetup1"


class SetupDiverged(RuntimeError):
    """The newcomer's script called another collective than its predecessor did; it cannot be seated warm."""


class Entry(msgspec.Struct, frozen=True):
    """One collective: what was called, and what it returned (empty: not kept)."""

    call: str  # operation, group, shapes
    parts: tuple[bytes, ...]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def describe(operation: str, group: str, result: Any) -> str:
    """The signature by which a replayed call is matched."""
    shapes = ",".join(f"{t.dtype}{list(t.shape)}" for t in _tensors(result)[:8])
    return f"{operation} {group} {shapes}"


def called_by_ddp() -> bool:
    """Whether DDP is on the stack: its broadcasts carry state that newcomers receive otherwise."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("nn/parallel/distributed.py"):
            return True
        frame = frame.f_back
    return False


class Recorder:
    """Keeps the results of an original member's set-up."""

    def __init__(self) -> None:
        self._entries: list[Entry | None] = []
        self._size_bytes = 0
        self.complete = True

    def begin(self, call: str) -> int:
        """Reserve the place of a call that is being launched."""
        self._entries.append(Entry(call, ()))
        return len(self._entries) - 1

    def fill(self, index: int, result: Any) -> None:
        """Keep the result of a completed call; past the bound the record is incomplete."""
        entry = self._entries[index]
        if entry is None or not self.complete:
            return
        parts = tuple(_bytes(tensor) for tensor in _tensors(result))
        self._size_bytes += sum(map(len, parts))
        if self._size_bytes > MAX_RECORD_BYTES:
            self.complete = False
            self._entries = [None] * len(self._entries)
            return
        self._entries[index] = Entry(entry.call, parts)

    def write(self, fd: int) -> None:
        """Store the record in the memfd that a successor inherits."""
        body = msgspec.msgpack.encode(self._entries) if self.complete else b""
        os.ftruncate(fd, _HEADER.size + len(body))
        os.pwrite(fd, body, _HEADER.size)
        os.pwrite(fd, _HEADER.pack(_MAGIC, len(body)), 0)


class Replayer:
    """Answers a newcomer's set-up calls from its predecessor's record."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._next = 0

    def answer(self, call: str, result: Any) -> None:
        """Write the recorded result into the tensors of this call.

        Raises:
            SetupDiverged: the predecessor called something else here; the tensors are unchanged.
        """
        if self._next >= len(self._entries):
            raise SetupDiverged(f"set-up collective {self._next + 1} is {call!r}; the seat's first occupant made fewer")
        entry = self._entries[self._next]
        if entry.call != call:
            raise SetupDiverged(
                f"set-up collective {self._next + 1} is {call!r}, the seat's first occupant called {entry.call!r}"
            )
        self._next += 1
        for part, tensor in zip(entry.parts, _tensors(result), strict=False):
            if part:
                source = torch.frombuffer(bytearray(part), dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)
                tensor.copy_(source)


def read(fd: int) -> Replayer | None:
    """The record in the memfd; None if there is none (an original member, or an incomplete record)."""
    size = os.fstat(fd).st_size
    if not _HEADER.size < size <= 2 * MAX_RECORD_BYTES:
        return None
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
        magic, length = _HEADER.unpack_from(view)
        if magic != _MAGIC or not 0 < length <= size - _HEADER.size:
            return None
        return Replayer(msgspec.msgpack.decode(view[_HEADER.size : _HEADER.size + length], type=list[Entry]))
