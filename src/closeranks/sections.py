"""Seconds by named operation in shared memory: totals that only grow; one thread writes, another process reads.

The reader looks when it gets to it, most often amid a step, when some have done a part of it that others have still
before them. So with every closed step the writer sets aside what it had spent by then, and that is what is read.
"""

from __future__ import annotations

import mmap

from closeranks.signs import Spent

_SLOTS = 24
_NAME_BYTES = 56  # UTF-8, filled up with zeros
_TRIES = 3  # a copy takes far less than a microsecond, a step far more
# In words: running totals in nanoseconds; how many steps were closed when the copy began; the copy; the same number
# when it was whole; the names.
_BEGAN, _COPY, _WHOLE, _NAMES = _SLOTS, _SLOTS + 1, 2 * _SLOTS + 1, 2 * _SLOTS + 2
WORDS = _NAMES + _SLOTS * _NAME_BYTES // 8


class Sections:
    """A part of a mapped page. Operations beyond its slots are not shown; those that came first are."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._bytes = memoryview(page)[offset : offset + WORDS * 8]
        self._words = self._bytes.cast("q")
        self._totals, self._copy = self._words[:_SLOTS], self._words[_COPY:_WHOLE]
        self._slots: dict[str, int | None] = {}  # by name; None: there is no room

    def add(self, name: str, spent_ns: int) -> None:
        """By the writer: so much more went into this operation."""
        slot = self._slots[name] if name in self._slots else self._begin(name)
        if slot is not None:
            self._totals[slot] += spent_ns

    def step_closed(self, steps: int) -> None:
        """By the writer: so many steps are closed, and what was spent until now belongs to them."""
        words = self._words
        words[_BEGAN] = steps
        self._copy[:] = self._totals
        words[_WHOLE] = steps

    def _begin(self, name: str) -> int | None:
        slot = len(self._slots)
        if slot >= _SLOTS:
            self._slots[name] = None
            return None
        # Cut between characters, and before the total is above zero: a reader sees whole names only.
        label = name.encode()[:_NAME_BYTES].decode(errors="ignore").encode()
        start = _NAMES * 8 + slot * _NAME_BYTES
        self._bytes[start : start + len(label)] = label
        self._slots[name] = slot
        return slot

    def read(self) -> Spent:
        """By the reader: seconds by operation, of the steps that are closed. Without any, nothing."""
        for _ in range(_TRIES):
            steps = self._words[_WHOLE]
            totals_ns = self._copy.tolist()
            if self._words[_BEGAN] == steps:
                break
        else:
            return Spent(0, {})  # whoever ended amid the copy left no whole one
        found: dict[str, float] = {}
        for slot, total_ns in enumerate(totals_ns):
            if total_ns <= 0:
                break
            start = _NAMES * 8 + slot * _NAME_BYTES
            label = bytes(self._bytes[start : start + _NAME_BYTES]).split(b"\0", 1)[0].decode(errors="replace")
            found[label] = found.get(label, 0.0) + total_ns / 1e9
        return Spent(steps, found)

    def close(self) -> None:
        """Let the page go."""
        for view in (self._totals, self._copy, self._words, self._bytes):
            view.release()
