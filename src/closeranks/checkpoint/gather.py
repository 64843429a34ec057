"""The two phases of a save: every writer's part becomes durable, then one of them knows all parts and commits.

Writers meet in the store alone, so that none waits for a message of a process that may be dead: what a writer has
contributed is there or not, and an attempt without a commit never happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from closeranks.checkpoint.format import DATA_PREFIX, FORMAT, ShardIndex, ShardRef
from closeranks.checkpoint.history import History
from closeranks.checkpoint.image import index_key
from closeranks.checkpoint.keys import (
    attempt_of,
    attempt_prefix,
    failed_writer,
    failure_key,
    indexed_writer,
    is_attempt,
    term_of,
)
from closeranks.checkpoint.problems import Damaged, SaveFailed
from closeranks.checkpoint.shard_index import INDEX_LIMIT_BYTES, encode_index
from closeranks.checkpoint.stores.retry import created, retried
from closeranks.checkpoint.stores.store import Store

_FAILURE_LIMIT_BYTES: Final = 1 << 16
_PROBLEM_CHARACTERS: Final = 4000
_FIRST_LOOK_S: Final = 0.02
_LOOKS_S: Final = 1.0  # at most between two looks
_READERS: Final = 8
_NAMED: Final = 8  # writers that a message names; it counts the others


class Gathered(NamedTuple):
    """The parts of an attempt that is complete."""

    shards: tuple[ShardRef, ...]  # in the order of their writers
    bases: tuple[int, ...]  # generations through which their extents refer to older objects, ascending


class Patience(NamedTuple):
    """How long to wait for the other writers, and on which clock."""

    deadline_s: float  # on the clock
    clock: Callable[[], float]  # monotonic seconds
    wait: Callable[[float], None]  # passes seconds; may raise, to give up early


class Unfinished(NamedTuple):
    """An attempt that was never committed."""

    attempt: str
    indexed: tuple[int, ...]  # writers whose part is durable


class _Failure(msgspec.Struct):
    problem: str


class _Head(msgspec.Struct):
    """What the gathering needs of a shard index; the rest is skipped, not built."""

    format: int
    attempt: str
    writer: int
    image_bytes: int
    bases: tuple[int, ...] = ()


def publish_index(store: Store, index: ShardIndex, bases: tuple[int, ...] = ()) -> ShardRef:
    """Say that a writer's part is durable. The image must be so before. Returns the reference for the commit.

    ``bases``: generations whose index was reused from (``Written.bases``), for the commit to name them.

    Raises:
        SaveFailed: another process has contributed under the same name; its part was left alone.
        StoreProblem: the store failed; the attempt is not complete, unless the problem is ``doubtful``.
    """
    index = msgspec.structs.replace(index, bases=bases or index.bases)
    key, data = index_key(index.attempt, index.writer), encode_index(index)
    if not created(store, key, data):
        raise SaveFailed(
            f"{store.url}/{key}: another process has saved as writer {index.writer} of this attempt; "
            "attempts need names of their own, and each writer one process"
        )
    return _reference(key, data, index.writer, index.image_bytes)


def publish_failure(store: Store, attempt: str, writer: int, problem: str) -> None:
    """Say that a writer cannot contribute, so that nobody waits for it.

    Raises:
        StoreProblem: the store failed here too; the others will wait until their deadline.
    """
    data = msgspec.json.encode(_Failure(problem=problem[:_PROBLEM_CHARACTERS]))
    retried(lambda: store.create(failure_key(attempt, writer), data))


def gather(store: Store, attempt: str, world: int, patience: Patience) -> Gathered:
    """Wait until every writer of the attempt has published its part.

    Raises:
        SaveFailed: a writer said that it failed, or some had not published by the deadline; their names and problems
            are in the message. Nothing was committed.
        Damaged: an index is not one of this attempt.
        StoreProblem: the store does not answer.
    """
    heads: dict[int, tuple[ShardRef, tuple[int, ...]]] = {}
    pause_s = _FIRST_LOOK_S
    with ThreadPoolExecutor(_READERS, thread_name_prefix="gather") as pool:
        while True:
            late = patience.clock() >= patience.deadline_s  # before the look: what is there by then counts
            present, failed = _look(store, attempt)
            if failed:
                raise SaveFailed(_failures(store, attempt, failed))
            new = [writer for writer in present if writer < world and writer not in heads]
            heads |= zip(new, pool.map(lambda writer: _head(store, attempt, writer), new), strict=True)
            if len(heads) == world:
                break
            if late:
                missing = [writer for writer in range(world) if writer not in heads]
                raise SaveFailed(
                    f"{store.url}/{attempt_prefix(attempt)}: {_named(missing)} of {world} did not finish in time; "
                    "give them longer, or look at what holds them up"
                )
            patience.wait(min(pause_s, max(patience.deadline_s - patience.clock(), 0.0)))
            pause_s = min(2 * pause_s, _LOOKS_S)
    ordered = [heads[writer] for writer in range(world)]
    return Gathered(tuple(ref for ref, _ in ordered), tuple(sorted({base for _, bases in ordered for base in bases})))


def unfinished(store: Store, history: History) -> tuple[Unfinished, ...]:
    """Attempts of older terms that were not committed, and never can be: what the successor of a dead lead finds.

    With a claim in the log the answer is final: each attempt of an older term is a generation, or it is one of these.

    Raises:
        StoreProblem: the store does not answer.
    """
    attempts: dict[str, list[int]] = {}
    for listed in retried(lambda: list(store.list(DATA_PREFIX))):
        attempt = attempt_of(listed.key)
        if attempt and attempt not in history.attempts and term_of(attempt) < history.term:
            writers = attempts.setdefault(attempt, [])
            if (writer := indexed_writer(attempt, listed.key)) >= 0:
                writers.append(writer)
    return tuple(Unfinished(attempt, tuple(writers)) for attempt, writers in attempts.items())


def _look(store: Store, attempt: str) -> tuple[list[int], list[int]]:
    if not is_attempt(attempt):
        raise ValueError(f"{attempt!r} is not the name of an attempt")
    keys = retried(lambda: [listed.key for listed in store.list(attempt_prefix(attempt))])
    present = (indexed_writer(attempt, key) for key in keys)
    failed = (failed_writer(attempt, key) for key in keys)
    return [writer for writer in present if writer >= 0], [writer for writer in failed if writer >= 0]


def _head(store: Store, attempt: str, writer: int) -> tuple[ShardRef, tuple[int, ...]]:
    key = index_key(attempt, writer)
    data = retried(lambda: store.read(key, INDEX_LIMIT_BYTES))
    try:
        head = msgspec.json.decode(data.partition(b"\n")[0], type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{store.url}/{key}: expected the index of a shard: {error}", object_key=key) from None
    if (head.format, head.attempt, head.writer) != (FORMAT, attempt, writer):
        raise Damaged(
            f"{store.url}/{key}: expected format {FORMAT}, attempt {attempt} and writer {writer}, "
            f"got format {head.format}, attempt {head.attempt[:80]} and writer {head.writer}",
            object_key=key,
        )
    return _reference(key, data, writer, head.image_bytes), head.bases


def _reference(key: str, data: bytes, writer: int, image_bytes: int) -> ShardRef:
    return ShardRef(
        writer=writer, object=key, length=len(data), blake3=blake3(data).hexdigest(), image_bytes=image_bytes
    )


def _failures(store: Store, attempt: str, failed: Iterable[int]) -> str:
    writers = sorted(failed)
    told = []
    for writer in writers[:_NAMED]:
        data = retried(lambda: store.read(failure_key(attempt, writer), _FAILURE_LIMIT_BYTES))  # noqa: B023 - called at once
        try:
            told.append(f"writer {writer}: {msgspec.json.decode(data, type=_Failure).problem}")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            told.append(f"writer {writer}: it did not say why")
    more = f", and {len(writers) - _NAMED} more" if len(writers) > _NAMED else ""
    return f"{store.url}/{attempt_prefix(attempt)}: {'; '.join(told)}{more}"


def _named(writers: list[int]) -> str:
    names = ", ".join(map(str, writers[:_NAMED]))
    more = f" and {len(writers) - _NAMED} more" if len(writers) > _NAMED else ""
    return f"writer{'s' * (len(writers) > 1)} {names}{more}"
