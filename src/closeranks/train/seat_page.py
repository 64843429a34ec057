"""The page of a seat: state that differs by seat, so that a successor inherits it.

Two halves in a memfd that the supervisor holds; each carries the step that it belongs to. A half is marked invalid
while it is written, so a death in the middle leaves the other half. Written at the first collective of a backward
pass (from then on a peer may apply the step) and again at the close if something changed in between.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from closeranks.train import tree
from closeranks.train.digest import digest, raw_bytes
from closeranks.train.protected import always_changed
from closeranks.train.randomness import plain_random, random_of

if TYPE_CHECKING:
    from closeranks.train.protected import Protected
    from closeranks.train.randomness import Randomness

MAX_PAGE_BYTES = 2**30
_HEADER = struct.Struct("<8sQqQqQ")  # magic, bytes of a half, then for each half: step, used bytes
_MAGIC = b"crpage01"
_INVALID = -2
_HEADER_BYTES = 64
_LENGTH_BYTES = 8
_STEP_OFFSETS = (16, 32)


class SeatStateMissing(RuntimeError):
    """The predecessor's page does not hold the wanted step; the seat cannot be taken over warm."""


class _Leaf(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]


class _Content(msgspec.Struct, frozen=True):
    buffers: tuple[_Leaf, ...]
    structure: dict[str, Any]
    tensors: tuple[_Leaf, ...]
    random: bool


_DTYPES = {
    str(d): d
    for d in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip


class SeatPage:
    """Writes this seat's local state; reads what a predecessor left."""

    def __init__(self, fd: int, protected: Protected, randomness: Randomness) -> None:
        self._fd = fd
        self._protected = protected
        self._randomness = randomness
        self._map: mmap.mmap | None = None
        self._half_bytes = 0
        self._active = 0
        self._written: tuple[int, tuple[Any, ...]] | None = None  # step and versions of the newest half

    # --- writing -----------------------------------------------------------------------------------------------

    def _needed(self, buffers: list[tuple[str, torch.nn.Module, list[torch.Tensor]]]) -> bool:
        """Whether this seat has any local state."""
        return bool(buffers or self._protected.local or not self._randomness.managed)

    def _named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        return [(f"{name}/{i}", b) for name, _, own in self._protected.buffers() for i, b in enumerate(own)]

    def write(self, step: int) -> None:
        """Make the current local state that of ``step``, unless it was written already and nothing has changed."""
        buffers = self._protected.buffers()
        if not self._needed(buffers):
            return
        versions = self._versions(buffers)
        if self._written == (step, versions):
            return
        same_step = self._written is not None and self._written[0] == step
        half = self._active if same_step else 1 - self._active
        head, tensors = self._content()
        size = 8 + len(head) + sum(t.numel() * t.element_size() for t in tensors)
        view = self._room_for(size)
        offset = _HEADER_BYTES + half * self._half_bytes
        self._mark(half, _INVALID, 0)
        view[offset : offset + 8] = len(head).to_bytes(8, "little")
        view[offset + 8 : offset + 8 + len(head)] = head
        at = offset + 8 + len(head)
        for tensor in tensors:
            raw = raw_bytes(tensor)
            view[at : at + len(raw)] = raw
            at += len(raw)
        self._mark(half, step, size)
        self._active, self._written = half, (step, versions)

    def _versions(self, buffers: list[tuple[str, torch.nn.Module, list[torch.Tensor]]]) -> tuple[Any, ...]:
        found: list[Any] = []
        for _, owner, own in buffers:
            found.append(object() if always_changed(owner) else tuple(b._version for b in own))
        if self._protected.local or not self._randomness.managed:
            found.append(object())
        return tuple(found)

    def _content(self) -> tuple[bytes, list[torch.Tensor]]:
        buffers = self._named_buffers()
        extra: dict[str, torch.Tensor] = {}
        structure = self._protected.local_structure(extra)
        random = self._randomness.capture()
        if random is not None:
            structure["\0random"] = tree.flatten("random", plain_random(random), extra)
        content = _Content(
            buffers=tuple(_leaf(name, b) for name, b in buffers),
            structure=structure,
            tensors=tuple(_leaf(name, t) for name, t in extra.items()),
            random=random is not None,
        )
        return msgspec.json.encode(content), [b for _, b in buffers] + list(extra.values())

    def _room_for(self, size: int) -> mmap.mmap:
        if self._map is not None and size <= self._half_bytes:
            return self._map
        half = -(-size * 5 // 4 // mmap.PAGESIZE) * mmap.PAGESIZE
        total = _HEADER_BYTES + 2 * half
        if total > MAX_PAGE_BYTES:
            raise ValueError(
                f"seat-local state of {size} bytes: at most {MAX_PAGE_BYTES // 2} are kept for a successor; "
                f"make large constant buffers non-persistent attributes, or do not protect them"
            )
        if self._map is not None:
            self._map.close()
        os.ftruncate(self._fd, total)
        self._map = mmap.mmap(self._fd, total)
        self._half_bytes = half
        _HEADER.pack_into(self._map, 0, _MAGIC, half, _INVALID, 0, _INVALID, 0)
        self._written = None
        return self._map

    def _mark(self, half: int, step: int, used: int) -> None:
        if self._map is not None:
            struct.pack_into("<qQ", self._map, _STEP_OFFSETS[half], step, used)

    # --- reading -----------------------------------------------------------------------------------------------

    def inherit(self, step: int) -> None:
        """Take over the predecessor's local state of ``step``.

        Raises:
            SeatStateMissing: no half holds that step; nothing was changed.
        """
        if step < 0 or not self._needed(self._protected.buffers()):
            return
        content, body = _read_half(self._fd, step)
        offset = 0
        loaded: list[torch.Tensor] = []
        for leaf in (*content.buffers, *content.tensors):
            dtype = _DTYPES[leaf.dtype]
            count = torch.Size(leaf.shape).numel()
            end = offset + count * dtype.itemsize
            part = bytearray(body[offset:end])
            loaded.append(
                torch.frombuffer(part, dtype=dtype).reshape(leaf.shape)
                if part
                else torch.empty(leaf.shape, dtype=dtype)
            )
            offset = end
        self._adopt(content, loaded)

    def _adopt(self, content: _Content, loaded: list[torch.Tensor]) -> None:
        count = len(content.buffers)
        by_name = {leaf.name: t for leaf, t in zip(content.buffers, loaded[:count], strict=True)}
        with torch.no_grad():
            for name, buffer in self._named_buffers():
                if name not in by_name:
                    raise SeatStateMissing(f"buffer {name} is not in the predecessor's page")
                buffer.copy_(by_name[name])
        extra = {leaf.name: t for leaf, t in zip(content.tensors, loaded[count:], strict=True)}
        for name, value in self._protected.local.items():
            value.load_state_dict(tree.unflatten(content.structure[name], extra))
        if content.random and not self._randomness.managed:
            self._randomness.restore(random_of(tree.unflatten(content.structure["\0random"], extra)))

    def digest(self) -> str:
        """Digest of the current local state, for comparisons between runs."""
        buffers = self._named_buffers()
        extra: dict[str, torch.Tensor] = {}
        structure = self._protected.local_structure(extra)
        return digest([*buffers, *extra.items()], structure)


def _leaf(name: str, tensor: torch.Tensor) -> _Leaf:
    return _Leaf(name, str(tensor.dtype), tuple(tensor.shape))


def _read_half(fd: int, step: int) -> tuple[_Content, bytes]:
    size = os.fstat(fd).st_size
    if _HEADER_BYTES < size <= MAX_PAGE_BYTES:
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
            magic, half_bytes, *marks = _HEADER.unpack_from(view)
            for half in (0, 1):
                found, used = marks[2 * half], marks[2 * half + 1]
                start = _HEADER_BYTES + half * half_bytes
                if magic == _MAGIC and found == step and _LENGTH_BYTES < used <= half_bytes and start + used <= size:
                    head = int.from_bytes(view[start : start + 8], "little")
                    if head <= used - 8:
                        content = msgspec.json.decode(view[start + 8 : start + 8 + head], type=_Content)
                        return content, view[start + 8 + head : start + used]
    raise SeatStateMissing(f"no seat-local state of step {step} was left by the predecessor")
