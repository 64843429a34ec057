"""Frees what nothing can need any more: parts of saves that never were, and of generations that were given up.

Why deleting by an old look at the log is safe. Below, P is the entry after which the decision is made.

- An attempt whose term has ended before P, and that is not committed by then, is never committed: later commits of that
  term are void. One of the newest term is left alone, unless its own lead has given it up.
- An object that no generation alive at P refers to is never referred to again. The first later commit that did so would
  have to reuse it from a base that is alive then; such a base was alive at P, or is itself a later commit.

The log is never deleted from, nor its copies: whatever no attempt owns is left alone.

So neither a paused sweep nor two of them can take what is needed, and a commit that builds on a retired generation is
void. What is not known is whether an entry that was decided upon is on the disk already, and whether an append that
failed may still arrive; both are settled by an entry of our own before the first deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import msgspec
from blake3 import blake3

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import DATA_PREFIX, ShardRef
from closeranks.checkpoint.history import Generation, History
from closeranks.checkpoint.keys import attempt_of, term_of
from closeranks.checkpoint.problems import Damaged
from closeranks.checkpoint.shard_index import INDEX_LIMIT_BYTES
from closeranks.checkpoint.stores.retry import retried
from closeranks.checkpoint.stores.store import Listed, Store

Progress = Callable[[str, int, int], None]  # the stage, the bytes done, the bytes in all

_READERS: Final = 8
_BATCH: Final = 500  # objects between two reports of progress


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep deleted, or would delete."""

    keys: tuple[str, ...]
    freed_bytes: int
    notes: tuple[str, ...] = ()  # what was left behind for a reason that a person should know


def plan_sweep(
    history: History, listing: Iterable[Listed], referred: Collection[str], given_up: Collection[str] = frozenset()
) -> tuple[Listed, ...]:
    """The objects that no restore and no commit can need after this history.

    ``referred``: keys of all objects that shard indices of alive generations refer to. ``given_up``: attempts of the
    newest term that its holder will not commit.
    """
    alive = {generation.manifest.attempt for generation in history.generations.values()}
    doomed = []
    for listed in listing:
        attempt = attempt_of(listed.key)
        if not attempt or attempt in alive or listed.key in referred:
            continue
        term = term_of(attempt)
        if term < history.term or (term == history.term and (attempt in history.attempts or attempt in given_up)):
            doomed.append(listed)
    return tuple(doomed)


def sweep(
    store: Store,
    log: CommitLog,
    *,
    term: int | None = None,
    given_up: Collection[str] = frozenset(),
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Swept:
    """Delete what the log says nobody needs; with ``dry_run`` say what that is, and write nothing.

    Anybody may do so at any time: without a ``term`` as a visitor, with it as its holder, who may also give up
    attempts of the term. When it is cut off, the next one finds the rest.

    Raises:
        Fenced: a newer term was claimed than the one given; nothing was deleted.
        StoreProblem, Damaged, StoreRefused: as CommitLog; some of the objects may be gone, none that is needed.
    """
    listing = retried(lambda: tuple(store.list(DATA_PREFIX)))
    references = _References(store)
    history = log.refresh() if term is None else log.require(term)
    doomed, notes = _decide(history, listing, references, given_up)
    if doomed and not dry_run:
        doomed, notes = _decide(log.settle(term), listing, references, given_up)
        _delete(store, doomed, progress)
    return Swept(
        keys=tuple(one.key for one in doomed), freed_bytes=sum(one.length for one in doomed), notes=tuple(notes)
    )


def _decide(
    history: History, listing: tuple[Listed, ...], references: _References, given_up: Collection[str]
) -> tuple[tuple[Listed, ...], list[str]]:
    doomed = plan_sweep(history, listing, frozenset(), given_up)
    if all(attempt_of(one.key) not in history.attempts for one in doomed):
        return doomed, []  # never committed, so nobody refers to them
    referred, notes = references.of(history.generations.values())
    if notes:  # an index that cannot be read may refer to any object that ever was committed
        referred |= {one.key for one in doomed if attempt_of(one.key) in history.attempts}
    return plan_sweep(history, listing, referred, given_up), notes


def _delete(store: Store, doomed: tuple[Listed, ...], progress: Progress | None) -> None:
    total, done = sum(one.length for one in doomed), 0
    for begin in range(0, len(doomed), _BATCH):
        batch = doomed[begin : begin + _BATCH]
        retried(partial(store.delete, [one.key for one in batch]))
        done += sum(one.length for one in batch)
        if progress is not None:
            progress("sweep", done, total)


class _Place(msgspec.Struct):
    object: str


class _Places(msgspec.Struct):
    """What the sweep needs of a shard index; the rest is skipped, not built."""

    extents: tuple[_Place, ...]


class _References:
    """Which objects generations refer to. Indices never change, so each is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, frozenset[str]] = {}  # by digest of the index

    def of(self, generations: Iterable[Generation]) -> tuple[set[str], list[str]]:
        """Keys that those with bases refer to (others have all their objects themselves), and what was unreadable."""
        refs = [ref for g in generations if g.manifest.bases for ref in g.manifest.shards]
        unread = [ref for ref in refs if ref.blake3 not in self._known]
        notes = []
        with ThreadPoolExecutor(_READERS, thread_name_prefix="sweep") as pool:
            for ref, found in zip(unread, pool.map(self._read, unread), strict=True):
                if isinstance(found, Damaged):
                    notes.append(f"objects of retired generations are kept, since one may need them: {found}")
                else:
                    self._known[ref.blake3] = found
        known = (self._known.get(ref.blake3, frozenset()) for ref in refs)
        return set().union(*known), notes

    def _read(self, ref: ShardRef) -> frozenset[str] | Damaged:
        where = f"{self._store.url}/{ref.object}"
        try:
            data = retried(lambda: self._store.read(ref.object, min(ref.length, INDEX_LIMIT_BYTES)))
        except Damaged as problem:
            return problem
        if blake3(data).hexdigest() != ref.blake3:
            return Damaged(f"{where}: its digest is not the one that was committed", object_key=ref.object)
        try:
            places = msgspec.json.decode(data.partition(b"\n")[0], type=_Places)
        except msgspec.MsgspecError as error:
            return Damaged(f"{where}: expected the index of a shard: {error}", object_key=ref.object)
        return frozenset(place.object for place in places.extents)
