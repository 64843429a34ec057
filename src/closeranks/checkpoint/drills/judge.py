"""What must hold of a store after its processes were cut off: looked at afresh, and by going on."""

from __future__ import annotations

from collections.abc import Sequence

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.drills.life import JOB, Acknowledged, Life, live
from closeranks.checkpoint.drills.toy import Mixed, marks
from closeranks.checkpoint.entries import ENTRY_LIMIT_BYTES
from closeranks.checkpoint.history import History
from closeranks.checkpoint.keys import copy_key, entry_key
from closeranks.checkpoint.problems import CheckpointProblem, Damaged, StoreRefused
from closeranks.checkpoint.stores.opening import found
from closeranks.checkpoint.stores.store import Store
from closeranks.checkpoint.sweep import sweep


class Broken(Exception):
    """A promise of the store did not hold."""


def judge(store: Store, acknowledged: Sequence[Acknowledged], life: int, saves: int = 1) -> int:
    """Restore everything, then live on in the store under the number ``life``, and restore everything again.

    Returns the number of generations that were restored.

    Raises:
        Broken: an acknowledged commit is lost, something is a mixture, garbage stays for ever, or a hand is needed.
    """
    try:
        return _judge(store, acknowledged, life, saves)
    except (CheckpointProblem, Mixed) as problem:
        raise Broken(f"{type(problem).__name__}: {problem}") from problem


def _judge(store: Store, acknowledged: Sequence[Acknowledged], life: int, saves: int) -> int:
    known = list(acknowledged)
    count = _look(store, known) if _is_store(store, known) else 0
    live(store, Life(life, saves, known.append))
    _require(len(known) == len(acknowledged) + saves, "a further save did not work")
    count += _look(store, known)
    _require_copies(store)
    rest = sweep(store, CommitLog(store), dry_run=True)
    _require(not rest.keys and not rest.notes, f"a sweep left {rest.keys[:3]} {rest.notes[:1]}")
    return count


def _is_store(store: Store, acknowledged: Sequence[Acknowledged]) -> bool:
    try:
        found(store, JOB, make=False, now_wall_s=0.0)
    except StoreRefused:
        _require(not acknowledged, "a commit was acknowledged, and there is no store")
        return False
    return True


def _look(store: Store, acknowledged: Sequence[Acknowledged]) -> int:
    """All generations restore, each to its own mark; what was acknowledged is there, or was retired for newer ones."""
    history = CommitLog(store).refresh()
    restored = marks(store, history)
    _require(not history.void, f"a correct process wrote a void entry: {dict(history.void)}")
    for generation, mark in acknowledged:
        _require(restored.get(generation, mark) == mark, f"generation {generation} is not mark {mark}, as acknowledged")
        _require(generation in restored or _may_be_gone(history, generation), f"acknowledged {generation} is lost")
    return len(restored)


def _require_copies(store: Store) -> None:
    """After a further life every entry but the newest has its copy, whatever was cut off before."""
    last = CommitLog(store).refresh().last
    for number in range(1, last):
        try:
            data, copy = (store.read(key, ENTRY_LIMIT_BYTES) for key in (entry_key(number), copy_key(number)))
        except Damaged as damaged:
            raise Broken(f"entry {number} of {last} has no copy: {damaged}") from damaged
        _require(data == copy, f"the copy of entry {number} is not the same as the entry")


def _may_be_gone(history: History, generation: int) -> bool:
    return generation in history.retired and max(history.generations, default=0) > generation


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise Broken(problem)
