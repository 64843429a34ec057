"""What the savers of a job's nodes say to each other; the one of a single node talks to itself.

One of them leads: it decides when the state is saved, and what a new group begins with. The others act on the words of
the lead alone. A word may be lost with a connection, so whoever waits for an answer waits for a while, not for ever.
"""

from __future__ import annotations

from typing import Final

import msgspec


class _Word(msgspec.Struct, frozen=True, kw_only=True, tag_field="says", forbid_unknown_fields=True):
    pass


# --- the lead to all ------------------------------------------------------------------------------------------------


class Claimed(_Word, frozen=True, tag=True):
    """The store is this run's under this term: a newer one by somebody else means that it was taken over."""

    store_term: int


class Snap(_Word, frozen=True, tag=True):
    """Copy the state after this step; it lies ahead of every seat. Replaces what was asked for and not delivered."""

    save: int  # never used twice in a run
    step: int
    final: bool  # the last one: it waits for an arena, where others are given up
    unsaved: tuple[int, ...] = ()  # saves that were delivered and wait for PublishNow; older ones will not be saved


class PublishNow(_Word, frozen=True, tag=True):
    """Everybody has delivered: hand the images to the keeper. Answered by Taken, and perhaps by Missed."""

    save: int  # that the images were taken for
    number: int  # that they are saved as: the same, or another one when they are to reach more homes
    attempt: str
    world: int  # seats of all nodes
    tiers: tuple[str, ...] | None  # None: those that the keeper finds due


class GiveUp(_Word, frozen=True, tag=True):
    """The snapshot of this save will not be used."""

    save: int


class Trouble(_Word, frozen=True, tag=True):
    """A save did not become durable: every rank is told."""

    step: int
    cause: str
    problem: str  # the cause, and what is done about it


class LoadPoint(_Word, frozen=True, tag=True):
    """Read this state, beside the live one. Answered by LoadedHere."""

    step: int
    generation: int | None  # of the store; None: it was not committed
    in_memory: bool = False  # of this node, which is the only one


class AdoptAll(_Word, frozen=True, tag=True):
    """Every node has read the state of this step: it is the live one from now on."""

    step: int
    durable: bool  # it is in the store
    passed_over: tuple[str, ...] = ()  # newer states that could not be used, and notes


class LeaveNow(_Word, frozen=True, tag=True):
    """The last state is copied everywhere: let the ranks leave."""


FromLead = Claimed | Snap | PublishNow | GiveUp | Trouble | LoadPoint | AdoptAll | LeaveNow


# --- any node to the lead -------------------------------------------------------------------------------------------


class Delivered(_Word, frozen=True, tag=True):
    """The seats of this node have copied their state, or could not."""

    save: int
    seats: tuple[int, ...] = ()
    image_bytes: int = 0
    pause_s: float = 0.0
    problem: str = ""


class Taken(_Word, frozen=True, tag=True):
    """This node's keeper has the images, or will get them as soon as it runs."""

    number: int


class Missed(_Word, frozen=True, tag=True):
    """This node's part of a save did not become durable."""

    number: int
    problem: str


class LoadedHere(_Word, frozen=True, tag=True):
    """The seats of this node have read the state of a step, or could not."""

    step: int
    generation: int | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # copies that were refused on the way, and what else a person should know


class Back(_Word, frozen=True, tag=True):
    """This node may have missed what was said last: say it once more."""


ToLead = Delivered | Taken | Missed | LoadedHere | Back
Word = FromLead | ToLead

_WORDS: Final = msgspec.msgpack.Decoder(Word)


def encode(word: Word) -> bytes:
    """As MessagePack."""
    return msgspec.msgpack.encode(word)


def decode(body: bytes) -> Word:
    """The word in these bytes.

    Raises:
        msgspec.MsgspecError: not a word of this version.
    """
    return _WORDS.decode(body)
