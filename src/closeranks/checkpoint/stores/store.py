"""The one protocol of all homes: objects under keys, a few of them created only if absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

Buffer = memoryview  # contiguous bytes
OnPiece = Callable[[int, Buffer], None]  # first byte in the object, the bytes; called from the writing threads
ReadInto = Callable[[str, int, Buffer], None]  # Store.read_into


class Listed(NamedTuple):
    """One object of a listing."""

    key: str
    length: int
    modified_wall_s: float


class Store(Protocol):
    """A place for objects. Safe for use by several threads. Keys: ``[a-z0-9._/-]+``, none climbs out of the root.

    All methods raise StoreProblem; ``doubtful`` is set when a write may have happened all the same.
    """

    url: str  # for people, without secrets

    def create(self, key: str, data: bytes) -> bool:
        """Create the object if it is absent, durably and whole; False: there is one already, which was left alone."""
        ...

    def write(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None = None) -> int:
        """Write a new object, the parts one after the other; durable on return. Returns its length.

        Keys of written objects are unique by construction; an existing object is a problem, never overwritten.
        ``on_piece`` sees every byte once, in pieces of bounded size, in any order, before it is written.
        """
        ...

    def read_into(self, key: str, begin: int, target: Buffer) -> None:
        """Fill ``target`` from the object. Raises Damaged when the object is absent or too short."""
        ...

    def read(self, key: str, limit_bytes: int) -> bytes:
        """A whole small object. Raises Damaged when it is absent or longer than the limit."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Objects whose key begins with the prefix and is greater than ``after``, in the order of their keys."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; absent ones are no problem. A power cut may bring them back."""
        ...

    def close(self) -> None:
        """Give back connections and descriptors."""
        ...


@runtime_checkable
class Near(Protocol):
    """What a store has besides when a read of it costs little more than the copy: an open file, memory of this node."""

    def reader(self) -> AbstractContextManager[ReadInto]:
        """Read many small ranges of a few objects, from several threads; all of them are done when it is left."""
        ...
