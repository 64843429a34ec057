"""The restore drill: all of a generation is read back, and the log keeps what was found."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import ShardIndex, Verified
from closeranks.checkpoint.history import Generation
from closeranks.checkpoint.problems import CheckpointProblem, Damaged, NothingToRestore
from closeranks.checkpoint.reading import read_index, verify_shard
from closeranks.checkpoint.stores.store import Store

_DETAIL_CHARACTERS = 2000

Try = Callable[[Store, Generation, tuple[ShardIndex, ...]], str]
"""Uses a generation whose bytes are sound, such as by computing one step from it; "" or why it is of no use."""


class Found(NamedTuple):
    """What a drill found. Not ``recorded``: the store could not be asked, so nothing is known."""

    generation: int
    held: bool
    recorded: bool
    detail: str
    seconds: float


def drill(
    store: Store,
    log: CommitLog,
    generation: int | None = None,
    *,
    use: Try | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """Read every byte of a generation (None: the newest), compare the digests, and append Verified to the log.

    ``progress`` hears the bytes of the images that were read so far, and all of them.

    Raises:
        NothingToRestore: there is no such generation. Nothing was recorded.
        CheckpointProblem: the log cannot be read or written. Nothing was recorded.
    """
    began_s = time.monotonic()
    chosen = _choose(log, generation, store.url)
    try:
        detail = _read_all(store, chosen, use, progress)
        held = not detail
    except Damaged as problem:
        held, detail = False, str(problem)
    except CheckpointProblem as problem:
        detail = f"not known: {problem}"
        return Found(chosen.number, held=False, recorded=False, detail=detail, seconds=time.monotonic() - began_s)
    seconds = time.monotonic() - began_s
    if chosen.number not in log.refresh().generations:
        detail = "not known: it was retired while it was read"
        return Found(chosen.number, held=False, recorded=False, detail=detail, seconds=seconds)
    detail = detail or f"all digests of {_total(chosen):,} bytes held in {seconds:.3g} s"
    log.append_as_visitor(Verified(generation=chosen.number, held=held, detail=detail[:_DETAIL_CHARACTERS]))
    return Found(chosen.number, held=held, recorded=True, detail=detail, seconds=seconds)


def _choose(log: CommitLog, number: int | None, url: str) -> Generation:
    history = log.refresh()
    if number is None:
        newest = history.newest(trusted=False)
        if newest is None:
            raise NothingToRestore(f"{url}: no generation has been committed yet, so there is nothing to drill")
        return newest
    if number not in history.generations:
        alive = ", ".join(map(str, history.generations)) or "none"
        raise NothingToRestore(f"{url}: expected a generation that is alive ({alive}), got {number}")
    return history.generations[number]


def _read_all(
    store: Store, generation: Generation, use: Try | None, progress: Callable[[int, int], None] | None
) -> str:
    total, done = _total(generation), 0
    indices = []
    for ref in generation.manifest.shards:
        index = read_index(store, ref)

        def told(shard_done: int, _shard_total: int, before: int = done) -> None:
            if progress is not None:
                progress(before + shard_done, total)

        verify_shard(store, index, told)
        done += ref.image_bytes
        indices.append(index)
    return "" if use is None else use(store, generation, tuple(indices))


def _total(generation: Generation) -> int:
    return sum(ref.image_bytes for ref in generation.manifest.shards)
