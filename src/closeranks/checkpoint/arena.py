"""Memory that two processes share by a descriptor: the writer of state fills it, the keeper reads it.

Layout of the memfd: one page of control numbers, the image from ``IMAGE_AT`` on, then the small state beside it, then
the index that the keeper adds. The state word is written last, so that a process that dies while it fills an arena
leaves a torn one, which nobody uses. Memory is kept from one save to the next: only the first pays for fresh pages.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import xxhash

from closeranks.checkpoint.format import ShardIndex, Slice
from closeranks.checkpoint.image import Layout, image_key, index_key
from closeranks.checkpoint.node_memory import available_bytes, populate
from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.shard_index import encode_index
from closeranks.checkpoint.stores.store import Buffer, Listed, OnPiece, ReadInto

IMAGE_AT: Final = 2 * 2**20
_PAGE = 4096
_MAGIC: Final = b"crarena1"
_EMPTY, _TORN, _COMPLETE = 0, 1, 2
_STATE = struct.Struct("<8sQ")
_NUMBERS = struct.Struct("<QqQQQ")  # the fields of _Numbers
_SEAL = struct.Struct("<QQQ")  # turn, place and length of the index
_DIGEST_BYTES = 16  # of the numbers before it and of the bytes that they point to
_NUMBERS_AT, _SEAL_AT = 64, 256
_META_LIMIT_BYTES: Final = 2**32
_SLACK_BYTES = 4 * 2**20  # room for the state and the index, so that they seldom make the arena grow
_Kind = TypeVar("_Kind")


class Meta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies beside an image."""

    slices: tuple[Slice, ...]
    shared: Any = None
    local: Any = None


@dataclass(frozen=True, slots=True)
class Filled:
    """A whole image. ``image`` is the arena's own memory: valid until the arena is opened for another image."""

    step: int
    turn: int  # counts the images of this arena
    slices: tuple[Slice, ...]
    shared: Any
    local: Any
    image: Buffer
    index: ShardIndex | None  # with digests, once it was sealed
    arena: Arena

    def still(self) -> bool:
        """Whether the arena holds this image and has not been opened for another one."""
        return self.arena.turn() == self.turn


class _Numbers(NamedTuple):
    turn: int
    step: int
    image_bytes: int
    meta_at: int
    meta_bytes: int


class Arena:
    """One image in shared memory."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None
        self._mapped_bytes = 0

    @classmethod
    def create(cls, label: str) -> Arena:
        """A new, empty arena; nobody else can open it but by its descriptor."""
        return cls.of(os.memfd_create(f"closeranks-{label}", os.MFD_CLOEXEC))

    @classmethod
    def of(cls, fd: int) -> Arena:
        """The arena behind a descriptor, which it owns from now on; memory without a byte becomes an empty arena."""
        arena = cls(fd)
        if os.fstat(fd).st_size == 0:
            arena._reach(IMAGE_AT)
            arena._mark(_EMPTY)
        return arena

    def reserve(self, image_bytes: int) -> None:
        """Fetch the memory for an image of this size ahead of the first save.

        Raises:
            StoreProblem: there is not enough memory; what was in the arena stays.
        """
        self._reach(IMAGE_AT + image_bytes + _SLACK_BYTES)

    def open_image(self, step: int, layout: Layout) -> Buffer:
        """Mark the arena as torn, write the header, and give the memory of the whole image to be filled."""
        self._mark(_TORN)
        turn = self._read_numbers().turn + 1
        self._reach(IMAGE_AT + layout.image_bytes + _SLACK_BYTES)
        _NUMBERS.pack_into(self._bytes(), _NUMBERS_AT, turn, step, layout.image_bytes, 0, 0)
        image = self._bytes()[IMAGE_AT : IMAGE_AT + layout.image_bytes]
        image[: len(layout.header)] = layout.header
        return image

    def finish(self, step: int, meta: Meta) -> None:
        """Write what lies beside the image and mark it as complete.

        Raises:
            ValueError: the image was not opened for this step.
        """
        numbers = self._read_numbers()
        if numbers.step != step or self._state() != _TORN:
            raise ValueError(f"arena: expected the image of step {numbers.step} to be finished, got step {step}")
        data = msgspec.json.encode(meta)
        at = _page_up(IMAGE_AT + numbers.image_bytes)
        self._put(at, data)
        whole = numbers._replace(meta_at=at, meta_bytes=len(data))
        self._note(_NUMBERS_AT, _NUMBERS.pack(*whole), data)
        self._mark(_COMPLETE)

    def seal(self, index: ShardIndex) -> None:
        """Put the index with digests beside a complete image; the image can be restored from then on."""
        numbers = self._read_numbers()
        if self._state() != _COMPLETE:
            raise ValueError("arena: only a complete image can be sealed")
        data = msgspec.json.encode(index)
        at = _page_up(numbers.meta_at + numbers.meta_bytes)
        self._put(at, data)
        self._note(_SEAL_AT, _SEAL.pack(numbers.turn, at, len(data)), data)

    def turn(self) -> int:
        """The number of the image that the arena was last opened for; 0 before the first."""
        return self._read_numbers().turn

    def filled(self) -> Filled | None:
        """The image, if there is a whole one.

        Raises:
            Damaged: the arena calls itself complete, but its numbers contradict each other.
        """
        state = self._state()
        if state in (_EMPTY, _TORN):
            return None
        numbers = self._read_numbers()
        if state != _COMPLETE:
            raise Damaged(f"arena: expected state {_EMPTY}, {_TORN} or {_COMPLETE}, got {state}")
        data = self._noted("state", _NUMBERS_AT, _NUMBERS.pack(*numbers), (numbers.meta_at, numbers.meta_bytes))
        meta = _decoded(data, Meta)
        image = self._span("image", IMAGE_AT, numbers.image_bytes)
        index = self._index(numbers.turn)
        return Filled(numbers.step, numbers.turn, meta.slices, meta.shared, meta.local, image, index, self)

    def close(self) -> None:
        """Give the memory back; views of it that are still held keep their part alive."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        self._map = None

    def _index(self, turn: int) -> ShardIndex | None:
        sealed_turn, at, length = _SEAL.unpack_from(self._bytes(), _SEAL_AT)
        if sealed_turn != turn:
            return None  # of an earlier image
        return _decoded(self._noted("index", _SEAL_AT, _SEAL.pack(sealed_turn, at, length), (at, length)), ShardIndex)

    def _put(self, at: int, data: bytes) -> None:
        self._reach(at + len(data))
        self._bytes()[at : at + len(data)] = data

    def _note(self, at: int, numbers: bytes, data: bytes) -> None:
        self._bytes()[at : at + len(numbers) + _DIGEST_BYTES] = numbers + _xxh3(numbers, data)

    def _noted(self, what: str, note_at: int, numbers: bytes, place: tuple[int, int]) -> bytes:
        at, length = place
        if length > _META_LIMIT_BYTES:
            raise Damaged(f"arena: {what} of {length} bytes, more than {_META_LIMIT_BYTES}")
        data = bytes(self._span(what, at, length))
        expected, got = bytes(self._bytes()[note_at + len(numbers) :][:_DIGEST_BYTES]), _xxh3(numbers, data)
        if got != expected:
            raise Damaged(f"arena: {what}: expected digest {expected.hex()}, got {got.hex()}")
        return data

    def _span(self, what: str, at: int, length: int) -> Buffer:
        size = os.fstat(self.fd).st_size
        if at < IMAGE_AT or at + length > size:
            raise Damaged(f"arena: {what} from byte {at} to {at + length} is outside of its {size} bytes")
        return self._bytes()[at : at + length]

    def _state(self) -> int:
        magic, state = _STATE.unpack_from(self._bytes(), 0)
        if magic != _MAGIC:
            raise Damaged(f"arena: expected it to begin with {_MAGIC!r}, got {magic!r}")
        return int(state)

    def _mark(self, state: int) -> None:
        _STATE.pack_into(self._bytes(), 0, _MAGIC, state)

    def _read_numbers(self) -> _Numbers:
        return _Numbers(*_NUMBERS.unpack_from(self._bytes(), _NUMBERS_AT))

    def _reach(self, size: int) -> None:
        """Grow to at least this size, with all pages present."""
        have = os.fstat(self.fd).st_size
        if size <= have:
            return
        free = available_bytes()
        if size - have > free:
            raise StoreProblem(f"arena: expected {size - have:,} bytes of free memory on this node, got {free:,}")
        try:
            os.ftruncate(self.fd, _page_up(size))
            self._bytes()
        except OSError as error:
            os.ftruncate(self.fd, have)
            raise StoreProblem(f"arena: {size - have:,} bytes of memory: {error.strerror}") from error

    def _bytes(self) -> Buffer:
        """All of the memory as it is now; mapped anew when the arena has grown."""
        size = os.fstat(self.fd).st_size
        if size != self._mapped_bytes or self._map is None:
            if size < IMAGE_AT:
                raise Damaged(f"arena: expected at least {IMAGE_AT} bytes, got {size}")
            self._map = mmap.mmap(self.fd, size)
            self._mapped_bytes = size
            populate(self._map, size)
        return memoryview(self._map)


class ArenaStore:
    """Sealed arenas as a home to read from, under the usual keys. Nothing can be written to it."""

    url = "memory of this node"

    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._arenas = tuple(arenas)
        self._seen: dict[int, tuple[Filled, dict[str, Buffer]]] = {}

    def create(self, key: str, data: bytes) -> bool:  # noqa: ARG002
        """Refuse: images get here by being saved."""
        raise StoreProblem(f"{self.url}: {key}: cannot be written to")

    def write(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None = None) -> int:  # noqa: ARG002
        """Refuse: images get here by being saved."""
        raise StoreProblem(f"{self.url}: {key}: cannot be written to")

    def read_into(self, key: str, begin: int, target: Buffer) -> None:
        """Copy from the arena. Raises Damaged when no sealed arena has these bytes, or it was filled anew meanwhile."""
        filled, data = self._find(key)
        if begin + len(target) > len(data):
            raise Damaged(f"{self.url}: {key}: expected {begin + len(target)} bytes, got {len(data)}", object_key=key)
        target[:] = data[begin : begin + len(target)]
        if not filled.still():
            raise Damaged(f"{self.url}: {key}: a newer image took its place", object_key=key)

    def reader(self) -> AbstractContextManager[ReadInto]:
        """See Near."""
        return nullcontext(self.read_into)

    def read(self, key: str, limit_bytes: int) -> bytes:
        """A whole object, up to the limit."""
        _, data = self._find(key)
        if len(data) > limit_bytes:
            raise Damaged(f"{self.url}: {key}: {len(data)} bytes, expected at most {limit_bytes}", object_key=key)
        return bytes(data)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Images and indices of the sealed arenas."""
        found = [Listed(key, len(data), 0.0) for _, objects in self._sealed() for key, data in objects.items()]
        return iter(sorted(item for item in found if item.key.startswith(prefix) and item.key > after))

    def delete(self, keys: Iterable[str]) -> None:
        """Nothing to do: an image goes when its arena is filled anew."""

    def close(self) -> None:
        """Leave the arenas to their owner."""

    def _find(self, key: str) -> tuple[Filled, Buffer]:
        for filled, objects in self._sealed():
            if key in objects:
                return filled, objects[key]
        raise Damaged(f"{self.url}: {key}: no such image", object_key=key)

    def _sealed(self) -> Iterator[tuple[Filled, dict[str, Buffer]]]:
        for number, arena in enumerate(self._arenas):
            seen = self._seen.get(number)
            if seen is None or not seen[0].still():
                seen = _objects(arena)
                if seen is None:
                    continue
                self._seen[number] = seen
            yield seen


def _objects(arena: Arena) -> tuple[Filled, dict[str, Buffer]] | None:
    filled = arena.filled()
    if filled is None or filled.index is None:
        return None
    index = filled.index
    text = memoryview(encode_index(index))
    return filled, {image_key(index.attempt, index.writer): filled.image, index_key(index.attempt, index.writer): text}


def _page_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _xxh3(numbers: bytes, data: bytes) -> bytes:
    digest = xxhash.xxh3_128(numbers)
    digest.update(data)
    return digest.digest()


def _decoded(data: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Damaged(f"arena: {kind.__name__}: {error}") from error
