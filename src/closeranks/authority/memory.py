"""A register in this process's memory: for tests, and for a job whose only possible leader is this process."""

from __future__ import annotations

from closeranks.authority.register import NOTHING, Held, checked


class MemoryRegister:
    """Survives nothing, and is shared with nobody outside this process."""

    def __init__(self) -> None:
        self._held = NOTHING
        self._writes = 0

    async def read(self) -> Held:
        """See Register."""
        return self._held

    async def write(self, value: bytes, expected: Held) -> Held:
        """See Register."""
        if checked(value) == self._held.value or expected.version != self._held.version:
            return self._held
        self._writes += 1
        self._held = Held(value, str(self._writes))
        return self._held

    async def close(self) -> None:
        """See Register."""
