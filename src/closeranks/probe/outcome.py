"""What a test of a part of this machine came to. Nothing to test is no good news: it has its own word."""

from __future__ import annotations

import msgspec


class _Outcome(msgspec.Struct, frozen=True, tag_field="outcome"):
    reason: str


class Passed(_Outcome, frozen=True, tag="passed"):
    """It did what it should; ``reason`` says what was measured."""


class Failed(_Outcome, frozen=True, tag="failed"):
    """It did something else: the part should not be used."""


class Scarce(Failed, frozen=True, tag="failed"):
    """It failed for want of room or memory, which there may be again: a later test may pass."""


class Absent(_Outcome, frozen=True, tag="absent"):
    """There is no such part here."""


class Unknown(_Outcome, frozen=True, tag="unknown"):
    """The test itself could not be done: nothing is known of the part."""


Outcome = Passed | Failed | Absent | Unknown


def word_of(outcome: Outcome) -> str:
    """``passed``, ``failed``, ``absent`` or ``unknown``."""
    return str(outcome.__struct_config__.tag)


def told(outcome: Outcome) -> str:
    """``passed`` alone; of any other with its reason."""
    word = word_of(outcome)
    return word if isinstance(outcome, Passed) else f"{word}: {outcome.reason}"
