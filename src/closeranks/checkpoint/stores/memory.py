"""Objects in this process's memory: a peer's home, and the store of most tests."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.stores.keys import checked_key, checked_prefix
from closeranks.checkpoint.stores.store import Buffer, Listed, OnPiece, ReadInto

PIECE_BYTES = 8 * 2**20


class MemoryStore:
    """A dictionary. It survives nothing, and takes at most ``limit_bytes`` of objects when that is given."""

    def __init__(self, *, limit_bytes: int | None = None, clock: Callable[[], float] = time.time) -> None:
        self.url = "memory:"
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes | bytearray, float]] = {}
        self._keys: list[str] = []
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all objects."""
        return self._used_bytes

    def create(self, key: str, data: bytes) -> bool:
        """See Store."""
        with self._lock:
            if checked_key(key, self.url) in self._objects:
                return False
            self._keep(key, bytes(data))
        return True

    def write(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None = None) -> int:
        """See Store."""
        views = [part.cast("B") for part in parts]
        length = sum(len(view) for view in views)
        with self._lock:
            self._require_absent(checked_key(key, self.url))
            self._require_room(key, length)
        data = bytearray(length)
        at = 0
        for view in views:
            for begin in range(0, len(view), PIECE_BYTES):
                piece = view[begin : begin + PIECE_BYTES]
                if on_piece is not None:
                    on_piece(at, piece)
                data[at : at + len(piece)] = piece
                at += len(piece)
        with self._lock:
            self._require_absent(key)
            self._keep(key, data)
        return length

    def read_into(self, key: str, begin: int, target: Buffer) -> None:
        """See Store."""
        data = self._data(key)
        view = target.cast("B")
        if begin + len(view) > len(data):
            raise Damaged(
                f"{self.url} {key}: expected at least {begin + len(view):,} bytes, got an object of {len(data):,};"
                " restore from another home or generation",
                object_key=key,
            )
        view[:] = memoryview(data)[begin : begin + len(view)]

    def reader(self) -> AbstractContextManager[ReadInto]:
        """See Near."""
        return nullcontext(self.read_into)

    def read(self, key: str, limit_bytes: int) -> bytes:
        """See Store."""
        data = self._data(key)
        if len(data) > limit_bytes:
            raise Damaged(
                f"{self.url} {key}: expected at most {limit_bytes:,} bytes, got an object of {len(data):,}; restore"
                " from another home or generation",
                object_key=key,
            )
        return bytes(data)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """See Store."""
        checked_prefix(prefix, self.url)
        with self._lock:
            first = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, after))
            rows = []
            for key in self._keys[first:]:
                if not key.startswith(prefix):
                    break
                data, modified_wall_s = self._objects[key]
                rows.append(Listed(key, len(data), modified_wall_s))
        return iter(rows)

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        for key in keys:
            with self._lock:
                data, _ = self._objects.pop(checked_key(key, self.url), (None, 0.0))
                if data is not None:
                    self._used_bytes -= len(data)
                    del self._keys[bisect.bisect_left(self._keys, key)]

    def close(self) -> None:
        """Nothing to give back: whoever holds the store still holds its objects."""

    def _data(self, key: str) -> bytes | bytearray:
        with self._lock:
            data, _ = self._objects.get(checked_key(key, self.url), (None, 0.0))
        if data is None:
            raise Damaged(
                f"{self.url} {key}: expected an object, got none; restore from another home or generation",
                object_key=key,
            )
        return data

    def _keep(self, key: str, data: bytes | bytearray) -> None:
        self._require_room(key, len(data))
        self._objects[key] = (data, self._clock())
        self._used_bytes += len(data)
        bisect.insort(self._keys, key)

    def _require_absent(self, key: str) -> None:
        if key in self._objects:
            raise StoreProblem(
                f"{self.url} {key}: expected no such object, got one; it was left alone: begin a new attempt"
            )

    def _require_room(self, key: str, length: int) -> None:
        if self._limit_bytes is not None and self._used_bytes + length > self._limit_bytes:
            raise StoreProblem(
                f"{self.url} {key}: expected room for {length:,} bytes, got {self._limit_bytes - self._used_bytes:,} of"
                f" {self._limit_bytes:,} free; raise the limit of this tier or keep fewer generations in it"
            )
