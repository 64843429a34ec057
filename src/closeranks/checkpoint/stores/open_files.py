"""Files that stay open for many reads of a few objects. Objects are never overwritten: what is open stays right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

KEPT_LIMIT: Final = 64  # far from a process's limit of descriptors, and more objects than most shards refer to

T = TypeVar("T")


class OpenFiles(Generic[T]):
    """The first files that were asked for, up to the limit; safe for use by several threads until it is closed."""

    def __init__(self, open_it: Callable[[str], T], close_it: Callable[[T], None]) -> None:
        self._open, self._close = open_it, close_it
        self._lock = threading.Lock()
        self._kept: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        """The open file; None: there are too many, so that the caller opens it for himself."""
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        with self._lock:  # held while it opens: two threads want the same object most of the time
            kept = self._kept.get(key)
            if kept is None and len(self._kept) < KEPT_LIMIT:
                kept = self._kept[key] = self._open(key)
            return kept

    def close(self) -> None:
        """Close all of them; nobody may be reading any more."""
        with self._lock:
            while self._kept:
                self._close(self._kept.popitem()[1])
