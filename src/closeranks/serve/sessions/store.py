"""Where streams are kept: the protocol, and the store in this process's memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

from closeranks.serve.sessions.record import Claimed, Entry, Head

STREAMS_MAX: Final = 10_000
BYTES_MAX: Final = 256 * 2**20


class StoreError(Exception):
    """The store did not take or give; whatever was to be kept may be kept or not."""


class StreamStore(Protocol):
    """Keeps heads and entries for a while; a stream belongs to whoever claimed it last."""

    async def begin(self, head: Head) -> int:
        """A new stream; its first generation.

        Raises:
            StoreError: it is not known to be kept.
        """

    async def append(self, stream: str, generation: int, entries: list[Entry]) -> bool:
        """Keep what came next; False if the stream was claimed by somebody else, or is kept no longer.

        Raises:
            StoreError: it is not known to be kept.
        """

    async def claim(self, stream: str) -> Claimed | None:
        """Take the stream over with all that was kept; None if it is not kept.

        Raises:
            StoreError: the store did not answer.
        """

    async def close(self) -> None:
        """Let go of it."""


class MemoryStreams:
    """Survives a client's connection, not this process. The oldest streams make room for new ones."""

    def __init__(self, *, streams_max: int = STREAMS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._streams_max = streams_max
        self._bytes_max = bytes_max
        self._kept: OrderedDict[str, Claimed] = OrderedDict()
        self._bytes = 0

    async def begin(self, head: Head) -> int:
        """See StreamStore."""
        self._put(Claimed(head=head, entries=(), generation=1))
        return 1

    async def append(self, stream: str, generation: int, entries: list[Entry]) -> bool:
        """See StreamStore."""
        kept = self._kept.get(stream)
        if kept is None or kept.generation != generation:
            return False
        self._put(Claimed(head=kept.head, entries=(*kept.entries, *entries), generation=generation))
        return True

    async def claim(self, stream: str) -> Claimed | None:
        """See StreamStore."""
        kept = self._kept.get(stream)
        if kept is None:
            return None
        claimed = Claimed(head=kept.head, entries=kept.entries, generation=kept.generation + 1)
        self._put(claimed)
        return claimed

    async def close(self) -> None:
        """See StreamStore."""
        self._kept.clear()

    def _put(self, claimed: Claimed) -> None:
        old = self._kept.pop(claimed.head.stream, None)
        self._bytes += _size(claimed) - (_size(old) if old is not None else 0)
        self._kept[claimed.head.stream] = claimed
        while len(self._kept) > 1 and (len(self._kept) > self._streams_max or self._bytes > self._bytes_max):
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= _size(dropped)


def _size(kept: Claimed) -> int:
    return len(kept.head.body) + sum(len(entry.raw) + 64 for entry in kept.entries)
