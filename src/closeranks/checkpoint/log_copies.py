"""The second copy of every log entry, for the day on which a disk has changed a bit of the first.

A copy decides nothing. Entry n is what won number n in the log, and its copy is made of bytes that were read from there
and decoded. Nor is it made before entry n + 1 exists: a store that loses its newest entry wins that number again with
another one, which must not meet a copy of the lost. Whoever appends makes the copy of the entry before; where a crash
came between, the next claim finds the gap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from closeranks.checkpoint.entries import ENTRY_LIMIT_BYTES, decode_entry
from closeranks.checkpoint.format import LOG_COPY_PREFIX
from closeranks.checkpoint.keys import copied_number, copy_key, entry_key
from closeranks.checkpoint.problems import Damaged, StoreProblem, StoreRefused
from closeranks.checkpoint.stores.retry import retried
from closeranks.checkpoint.stores.store import Store

_THREADS: Final = 8


class LogDamage(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the log, or a copy of one, that is not what was written."""

    entry: int
    object: str
    problem: str
    served_by: str  # the key of the object that says the same and is sound; "": none is


class Copies:
    """Makes the copies that are owed. Not safe for use by several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owed: set[int] = set()
        self._looked = False

    def owe(self, numbers: Iterable[int]) -> None:
        """Entries that may have no copy yet."""
        self._owed.update(number for number in numbers if number > 0)

    def look(self, last: int) -> None:
        """Owe all copies that the store lacks; it is asked once. ``last`` is the newest entry."""
        if self._looked:
            return
        try:
            present = {copied_number(one.key) for one in self._store.list(LOG_COPY_PREFIX)}
        except StoreProblem:
            return  # there is a next time
        self._owed |= set(range(1, last)) - present
        self._looked = True

    def pay(self, last: int, limit: int) -> None:
        """Make owed copies of entries before ``last``, the newest ones and so many. A store that fails is left alone.

        An append was good before this, so nothing is tried twice and nothing raised: what fails stays owed.
        """
        due = heapq.nlargest(limit, (number for number in self._owed if number < last))
        if len(due) < 2:  # noqa: PLR2004 - one needs no threads
            done = [self._is_done(number) for number in due]
        else:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="copies") as pool:
                done = list(pool.map(self._is_done, due))
        self._owed -= {number for number, is_done in zip(due, done, strict=True) if is_done}

    def _is_done(self, number: int) -> bool:
        try:
            self._copy(number)
        except StoreProblem:
            return False
        except (Damaged, StoreRefused):
            pass  # nothing that could be copied: whoever reads it hears of it
        return True

    def _copy(self, number: int) -> None:
        key = copy_key(number)
        data = self._store.read(entry_key(number), ENTRY_LIMIT_BYTES)
        decode_entry(data, number, f"{self._store.url}/{entry_key(number)}")
        if self._store.create(key, data) or _bytes(self._store, key) == data:
            return
        # Damaged, or of an entry that the store lost before this one won its number.
        self._store.delete([key])
        self._store.create(key, data)


def examine_log(store: Store, last: int) -> tuple[LogDamage, ...]:
    """Compare the entries up to number ``last`` with their copies, and name what is damaged.

    A copy that is not there is no damage: older versions made none, and the newest entry has none yet.

    Raises:
        StoreProblem: the store does not answer: nothing can be said.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="log") as pool:
        found = pool.map(lambda number: _examined(store, number), range(1, last + 1))
        return tuple(one for one in found if one is not None)


def _examined(store: Store, number: int) -> LogDamage | None:
    key, copy = entry_key(number), copy_key(number)
    where = f"{store.url}/{key}"
    first, second = retried(lambda: _bytes(store, key)), retried(lambda: _bytes(store, copy))
    if _is_sound(first, number):
        said = f"{store.url}/{copy}: it is not the same as {key}"
        same = second is None or second == first
        return None if same else LogDamage(entry=number, object=copy, problem=said, served_by=key)
    said = f"{where}: there is no such object" if first is None else f"{where}: its digest or its number does not hold"
    return LogDamage(entry=number, object=key, problem=said, served_by=copy if _is_sound(second, number) else "")


def _is_sound(data: bytes | None, number: int) -> bool:
    try:
        decode_entry(data or b"", number, "")
    except Damaged:
        return False
    return True


def _bytes(store: Store, key: str) -> bytes | None:
    try:
        return store.read(key, ENTRY_LIMIT_BYTES)
    except Damaged:
        return None
