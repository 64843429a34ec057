"""A store that is written no faster than it was asked to be, so that many writers do not storm what they share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from closeranks.checkpoint.stores.store import Buffer, Listed, OnPiece, Store


class PacedStore:
    """Another store with a bound on written bytes per second, for all threads together.

    Reads, log entries and indices are not held up: a restore is never slow for the sake of a save.

    Args:
        inner: The store that does the work.
        bytes_per_s: The bound, over any time longer than a few pieces (8 to 16 MiB each) take.
        clock: Monotonic seconds.
        sleep: Waits so many seconds; may return early to let a save go on at full speed, for example at a deadline.
    """

    def __init__(
        self,
        inner: Store,
        bytes_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"{inner.url}: expected a rate above 0 bytes per second, got {bytes_per_s}")
        self.inner = inner
        self.url = inner.url
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at_s = clock()  # when all that was let through so far will have passed at the given rate

    @property
    def notes(self) -> tuple[str, ...]:
        """What the inner store cannot promise, in words."""
        return tuple(getattr(self.inner, "notes", ()))

    def exists(self) -> bool:
        """Whether the inner store's place is there, where it can tell."""
        exists: Callable[[], bool] | None = getattr(self.inner, "exists", None)
        return exists is None or exists()

    def create(self, key: str, data: bytes) -> bool:
        """See Store."""
        return self.inner.create(key, data)

    def write(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None = None) -> int:
        """See Store."""

        def paced(at: int, piece: Buffer) -> None:
            if on_piece is not None:
                on_piece(at, piece)
            self._wait_for(len(piece))

        return self.inner.write(key, parts, paced)

    def read_into(self, key: str, begin: int, target: Buffer) -> None:
        """See Store."""
        self.inner.read_into(key, begin, target)

    def read(self, key: str, limit_bytes: int) -> bytes:
        """See Store."""
        return self.inner.read(key, limit_bytes)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """See Store."""
        return self.inner.list(prefix, after)

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        self.inner.delete(keys)

    def close(self) -> None:
        """See Store."""
        self.inner.close()

    def _wait_for(self, count: int) -> None:
        with self._lock:
            now_s = self._clock()
            turn_s = max(now_s, self._free_at_s)
            self._free_at_s = turn_s + count / self._bytes_per_s
        if turn_s > now_s:
            self._sleep(turn_s - now_s)
