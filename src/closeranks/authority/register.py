"""A register: one small value that many read and that changes only by compare-and-set.

Nothing else is asked of an authority: no clock, no lease of its own, no watch. Leases are built on top of it from what
each reader observed by its own clock (``decide/leadership.py``).
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

VALUE_BYTES_MAX: Final = 2**20
ANSWER_S: Final = 2.0  # the bound of every call: below a lease, so that a leader can try again before it has lost it


class RegisterError(Exception):
    """The authority cannot be reached or does not answer as one; whether a write took place is unknown."""


class RegisterRefused(Exception):
    """What the operator named is no authority, or cannot be used here; nothing was touched."""


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
        """Write if the register still holds ``expected``. What it held then: ours, or what somebody else wrote.

        Ours if and only if ``result.value == value``; callers make their values unique. After a doubtful answer (a lost
        reply, a timeout) the register is asked again, so an own write is not mistaken for somebody else's; it only is
        when a further writer has replaced it before the second question.

        Raises:
            RegisterError: no answer within the bound; the write may take place later, or not.
            ValueError: the value is longer than ``VALUE_BYTES_MAX``; nothing was written.
        """

    async def close(self) -> None:
        """Let go of connections; the value stays."""


def checked(value: bytes) -> bytes:
    """The value itself.

    Raises:
        ValueError: it is longer than a register takes.
    """
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"register: expected a value of at most {VALUE_BYTES_MAX:,} bytes, got {len(value):,}")
    return value
