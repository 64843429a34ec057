"""The images of a node's writers into a store, each with its index; cleaned up when it did not work out."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from closeranks.checkpoint.arena import Filled
from closeranks.checkpoint.format import ShardIndex
from closeranks.checkpoint.gather import publish_failure, publish_index
from closeranks.checkpoint.image import image_key, index_key
from closeranks.checkpoint.keeper_messages import Publish
from closeranks.checkpoint.keeper_work import GivenUp, Ticket, said
from closeranks.checkpoint.keys import failure_key
from closeranks.checkpoint.problems import CheckpointProblem, SaveFailed, StoreProblem
from closeranks.checkpoint.stores.paced import PacedStore
from closeranks.checkpoint.stores.retry import retried
from closeranks.checkpoint.stores.store import Store
from closeranks.checkpoint.tiers import Tier
from closeranks.checkpoint.writing import Options, Previous, Written, write_shard

_PAUSE_S: Final = (0.1, 0.4)  # before the one more try, drawn: many writers fail at the same moment


@dataclass(frozen=True, slots=True)
class Part:
    """What one writer has in the store."""

    index: ShardIndex
    depth: int  # incremental saves since the last whole one
    written_bytes: int
    reused_bytes: int
    digest_s: float


class NotOurs(SaveFailed):
    """Another process has saved as this writer of this attempt: nothing of it may be touched."""


class Pace:
    """A tier's store at the tier's rate, where it has one; a save that is given up waits no longer for its turn."""

    def __init__(self, store: Store, tier: Tier) -> None:
        self._ticket: Ticket | None = None
        self.store = store if tier.bytes_per_s is None else PacedStore(store, tier.bytes_per_s, sleep=self._wait)

    def of(self, ticket: Ticket) -> Store:
        """The store in the hands of this save, until the next one has it."""
        self._ticket = ticket
        return self.store

    def _wait(self, seconds: float) -> None:
        if self._ticket is not None:
            self._ticket.wait(seconds)


def write_parts(
    store: Store,
    ticket: Ticket,
    publish: Publish,
    options: Options,
    bases: Mapping[tuple[str, int], Previous],
) -> tuple[Part, ...]:
    """Write and publish the part of every writer of this node.

    When one fails, the others of the attempt are told so, and what cannot be used any more is deleted.

    Raises:
        NotOurs: somebody else has written as one of these writers.
        CheckpointProblem: a part is missing; the attempt cannot be committed, unless a StoreProblem is ``doubtful``.
        GivenUp: the save was given up meanwhile; the same holds.
    """
    parts: list[Part] = []
    try:
        ticket.wait_for_turn()
        for filled, writer in zip(ticket.images.whole(), publish.writers, strict=True):
            previous = bases.get((publish.group, writer))
            parts.append(_write_part(store, ticket, publish.attempt, (writer, filled), options, previous))
    except Exception as problem:
        if not isinstance(problem, NotOurs) and not (isinstance(problem, StoreProblem) and problem.doubtful):
            _withdraw(store, publish, publish.writers[len(parts) :], problem)
        raise
    return tuple(parts)


def _write_part(
    store: Store,
    ticket: Ticket,
    attempt: str,
    image: tuple[int, Filled],
    options: Options,
    previous: Previous | None,
) -> Part:
    writer, filled = image
    stem = _stem(attempt, writer)
    there = retried(lambda: next(store.list(stem), None))
    if there is not None:
        raise NotOurs(f"{store.url}: {there.key}: expected nothing of this writer, got an object; begin a new attempt")

    def write() -> Written:
        return write_shard(store, attempt, writer, filled, options, previous, ticket.progress)

    try:
        written = write()
    except StoreProblem as problem:
        if not (problem.transient or problem.doubtful):
            raise
        ticket.wait(random.uniform(*_PAUSE_S))  # noqa: S311 - spreads load, hides nothing
        _delete_images(store, attempt, writer)  # it may be there although the answer said otherwise
        written = write()
    ticket.check()  # from here on the part counts: not after the save was reported as lost
    index = msgspec.structs.replace(written.index, bases=written.bases)
    try:
        publish_index(store, index)
    except SaveFailed as problem:
        raise NotOurs(str(problem)) from problem
    depth = 0 if previous is None or not written.bases else previous.depth + 1
    return Part(index, depth, written.written_bytes, written.reused_bytes, written.digest_s)


def _withdraw(store: Store, publish: Publish, writers: Iterable[int], problem: BaseException) -> None:
    """These writers have published nothing: say so to whoever waits for them, and leave no images behind."""
    why = "it was given up" if isinstance(problem, GivenUp) else said(problem)
    for writer in writers:
        with contextlib.suppress(CheckpointProblem):
            if publish.world != len(publish.writers):
                publish_failure(store, publish.attempt, writer, why)
            _delete_images(store, publish.attempt, writer)


def _delete_images(store: Store, attempt: str, writer: int) -> None:
    words = (index_key(attempt, writer), failure_key(attempt, writer))
    store.delete([one.key for one in store.list(_stem(attempt, writer)) if one.key not in words])


def _stem(attempt: str, writer: int) -> str:
    """What the keys of all objects of a writer begin with."""
    return image_key(attempt, writer).removesuffix("safetensors")
