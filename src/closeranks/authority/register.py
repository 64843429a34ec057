"""A register: one small value that many read and that changes only by compare-and-set.

Nothing else is asked of an authority: no clock, no lease of its own, no watch. Leases are built on top of it from what
each reader observed by its own clock (``decide/leadership.py``).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

VALUE_BYTES_MAX = 2**20


class RegisterError(Exception):
    """The authority cannot be reached or does not answer as one; whether a write took place is unknown."""


class Held(NamedTuple):
    """What the register holds. ``version`` names this very write; it means nothing else and is never reused."""

    value: bytes
    version: str


NOTHING = Held(b"", "")  # before the first write


class Register(Protocol):
    """One value. Every call is bounded in time; none blocks the event loop."""

    async def read(self) -> Held:
        """The newest value: a write that was acknowledged before the call began is seen. ``NOTHING`` if there is none.

        Raises:
            RegisterError: no answer within the bound.
        """

    async def write(self, value: bytes, expected: Held) -> Held:
        """Write if the register still holds ``expected``. What it holds afterwards: ours, or what somebody else wrote.

        After a doubtful answer (a lost reply, a timeout) the register is read back, so the return value is the truth:
        it is ours if and only if ``result.value == value``; callers make their values unique.

        Raises:
            RegisterError: no answer within the bound; the write may take place later, or not.
            ValueError: the value is longer than ``VALUE_BYTES_MAX``; nothing was written.
        """

    async def close(self) -> None:
        """Let go of connections; the value stays."""
