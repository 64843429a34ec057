"""Seconds by named operation in shared memory: totals that only grow; one thread writes, another process reads."""

from __future__ import annotations

import mmap

_SLOTS = 24
_NAME_BYTES = 56
_SLOT_BYTES = 8 + _NAME_BYTES  # total in nanoseconds, then the name in UTF-8, filled up with zeros
WORDS = _SLOTS * _SLOT_BYTES // 8


class Sections:
    """A part of a mapped page. Operations beyond its slots are not shown; those that came first are."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._bytes = memoryview(page)[offset : offset + _SLOTS * _SLOT_BYTES]
        self._totals = self._bytes.cast("q")
        self._slots: dict[str, int | None] = {}  # by name: word of its total; None: there is no room

    def add(self, name: str, spent_ns: int) -> None:
        """By the writer: so much more went into this operation."""
        slot = self._slots[name] if name in self._slots else self._begin(name)
        if slot is not None:
            self._totals[slot] += spent_ns

    def _begin(self, name: str) -> int | None:
        index = len(self._slots)
        if index >= _SLOTS:
            self._slots[name] = None
            return None
        word = index * _SLOT_BYTES // 8
        # Cut between characters, and before the total is above zero: a reader sees whole names only.
        label = name.encode()[:_NAME_BYTES].decode(errors="ignore").encode()
        start = index * _SLOT_BYTES + 8
        self._bytes[start : start + len(label)] = label
        self._slots[name] = word
        return word

    def read(self) -> dict[str, float]:
        """By the reader: seconds so far, by operation."""
        found: dict[str, float] = {}
        for index in range(_SLOTS):
            total_ns = self._totals[index * _SLOT_BYTES // 8]
            if total_ns <= 0:
                break
            start = index * _SLOT_BYTES + 8
            label = bytes(self._bytes[start : start + _NAME_BYTES]).split(b"\0", 1)[0].decode(errors="replace")
            found[label] = found.get(label, 0.0) + total_ns / 1e9
        return found

    def close(self) -> None:
        """Let the page go."""
        self._totals.release()
        self._bytes.release()
