"""The log of a store: read it, claim a term in it, and publish under that term.

Every append looks at all entries before its number and then creates that number if it is absent. Whoever wins the
number decided on all that counts, so nothing needs a lock or a server: a paused writer finds its number taken, reads
on, and finds the newer claim.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from closeranks.checkpoint.entries import ENTRY_LIMIT_BYTES, decode_entry, encode_entry
from closeranks.checkpoint.format import (
    FORMAT,
    LOG_PREFIX,
    AnyAct,
    Claim,
    Commit,
    Entry,
    Manifest,
    Pin,
    Retire,
    Unpin,
    Verified,
)
from closeranks.checkpoint.history import EMPTY, History, fold, fold_all, manifest_problem
from closeranks.checkpoint.keys import copy_key, entry_key, entry_number
from closeranks.checkpoint.log_copies import Copies
from closeranks.checkpoint.log_summaries import SUMMARIZED, put_summary, summary_before
from closeranks.checkpoint.problems import BaseLost, Damaged, Fenced, NotAccepted, SaveFailed, StoreProblem
from closeranks.checkpoint.stores.retry import created, retried
from closeranks.checkpoint.stores.store import Store

_ROUNDS: Final = 200  # numbers lost to others before an append gives up: each is an entry that somebody else made
_READERS: Final = 8
_COPIES: Final = 8  # of older entries that an append makes, where some are missing
_COPIES_SETTLING: Final = 64
_T = TypeVar("_T")


class CommitLog:
    """One process's view of a store's log. Safe for use by several threads.

    Raises of every method, besides those it names: StoreProblem when the store does not answer, Damaged when an entry
    is not what was written, StoreRefused when a newer version wrote one.
    """

    def __init__(
        self, store: Store, clock: Callable[[], float] = time.time, wait: Callable[[float], None] = time.sleep
    ) -> None:
        """``clock`` tells wall time, for entries; ``wait`` passes seconds before something is tried again."""
        self._store, self._clock, self._wait = store, clock, wait
        self._history = EMPTY
        self._copies, self._leads = Copies(store), False
        self._summarized = 0  # up to this entry
        self._repaired: dict[int, str] = {}
        self._lock = threading.RLock()

    @property
    def history(self) -> History:
        """What was known after the last look."""
        return self._history

    @property
    def repaired(self) -> dict[int, str]:
        """Entries that are damaged and were read from their copies, each with the problem."""
        return dict(self._repaired)

    def refresh(self) -> History:
        """Read the entries that came since the last look."""
        with self._lock:
            newest = max(self._retried(self._numbers), default=self._history.last)
            if not self._history.last and newest > SUMMARIZED:
                self._history = summary_before(self._store, newest) or EMPTY
                self._summarized = self._history.last
            numbers = range(self._history.last + 1, newest + 1)
            if len(numbers) < _READERS:
                self._history = fold_all(self._history, map(self._read, numbers))
            else:
                with ThreadPoolExecutor(_READERS, thread_name_prefix="log") as pool:
                    self._history = fold_all(self._history, pool.map(self._read, numbers))
            if self._leads:  # those who made them may have been cut off before the copy of the one before
                self._copies.owe(numbers)
            return self._history

    def require(self, term: int) -> History:
        """Look at the log: is this still the newest term?

        Raises:
            Fenced: a newer term was claimed.
        """
        history = self.refresh()
        if history.term > term:
            raise Fenced(
                f"{self._store.url}: term {term} is over, {history.owner} has claimed term {history.term}; "
                "nothing that this process saves counts any more, so end it"
            )
        if history.term < term:
            raise ValueError(f"term {term} was never claimed in {self._store.url}, the newest is {history.term}")
        return history

    def claim(self, owner: str) -> int:
        """Begin a new term, which ends all older ones. Returns it."""
        with self._lock:
            entry = self._append(lambda history: (history.term + 1, Claim(owner=owner)))
            self._leads = True
            self._copies.look(entry.number)
            self._copies.pay(entry.number, _COPIES)
            return entry.term

    def commit(self, term: int, manifest: Manifest) -> int:
        """Publish a checkpoint whose shards are durable. Returns its generation; a second call returns the same.

        Raises:
            Fenced: a newer term was claimed. Nothing was published.
            BaseLost: a generation that it builds on was retired. Nothing was published.
            SaveFailed: no commit can publish such a manifest. Nothing was published.
            StoreProblem: when it is ``doubtful``, it may have been published all the same: call again, or look.
        """
        with self._lock:
            history = self.require(term)
            if manifest.attempt in history.attempts:
                return history.attempts[manifest.attempt]
            problem = manifest_problem(manifest, term)
            if problem:
                raise SaveFailed(f"{self._store.url}: cannot commit: {problem}")
            return self._append_under(term, Commit(manifest=manifest)).number

    def retire(self, term: int, generations: Iterable[int]) -> tuple[int, ...]:
        """Give generations up. Returns those that were: others are kept by the log, or were gone before.

        Raises:
            Fenced: a newer term was claimed. Nothing was retired.
        """
        with self._lock:
            history = self.require(term)
            shielded = history.shielded()
            going = tuple(one for one in generations if one in history.generations and one not in shielded)
            if not going:
                return ()
            entry = self._append_under(term, Retire(generations=going))
            return tuple(one for one in going if self._history.retired.get(one) == entry.number)

    def append(self, term: int, act: Pin | Unpin | Retire | Verified) -> int:
        """Pin, unpin, retire or mark as verified as the holder of the term. Returns the entry's number.

        Raises:
            Fenced: a newer term was claimed. Nothing was written.
            NotAccepted: it would change nothing (no such generation, or one that must stay); nothing was written.
        """
        with self._lock:
            self.require(term)
            return self._append_under(term, act).number

    def append_as_visitor(self, act: Pin | Unpin | Retire | Verified) -> int:
        """Pin, unpin, retire or mark as verified without a term of one's own. Returns the entry's number.

        A claim by somebody else in between does not matter: the act does not depend on who writes.

        Raises:
            NotAccepted: it would change nothing (no such generation, or one that must stay); nothing was written.
        """
        return self._append(lambda history: (history.term, act)).number

    def settle(self, term: int | None = None) -> History:
        """Append an entry that changes nothing, under this term or as a visitor, and return the history with it.

        Afterwards all earlier entries are on the disk, also those that others made a moment ago, and every append
        before it has happened or never will: its number is taken.

        Raises:
            Fenced: a newer term was claimed. Nothing was written.
        """
        nothing = Retire(generations=())
        with self._lock:
            if term is None:
                self.append_as_visitor(nothing)
            else:
                self.append(term, nothing)
            self._copies.look(self._history.last)
            self._copies.pay(self._history.last, _COPIES_SETTLING)
            return self._history

    # --- appending ------------------------------------------------------------------------------------------

    def _append_under(self, term: int, act: AnyAct) -> Entry:
        def under(history: History) -> tuple[int, AnyAct]:
            if history.term != term:
                self.require(term)
            return term, act

        return self._append(under)

    def _append(self, compose: Callable[[History], tuple[int, AnyAct]]) -> Entry:
        with self._lock:
            for _ in range(_ROUNDS):
                history = self.refresh()
                term, act = compose(history)
                entry = Entry(
                    format=FORMAT,
                    number=history.last + 1,
                    term=term,
                    nonce=secrets.token_hex(16),
                    wall_s=self._clock(),
                    act=act,
                )
                after = fold(history, entry)
                self._require_good(entry, after)
                if self._won(entry):
                    self._history = after
                    self._copies.owe((entry.number - 1, entry.number))
                    self._copies.pay(entry.number, _COPIES)
                    if self._leads and entry.number >= self._summarized + SUMMARIZED:
                        self._summarized = entry.number
                        put_summary(self._store, after, entry)
                    return entry
        raise StoreProblem(
            f"{self._store.url}: others won {_ROUNDS} log entries in a row; see who writes to this store and try again",
            transient=True,
        )

    def _require_good(self, entry: Entry, after: History) -> None:
        reason = after.void.get(entry.number)
        if reason is None:
            return
        problem = BaseLost if isinstance(entry.act, Commit) else NotAccepted
        raise problem(f"{self._store.url}: cannot {type(entry.act).__name__.lower()}: {reason}")

    def _won(self, entry: Entry) -> bool:
        # Whatever is tried again has the same bytes, so a request that arrives late puts the same entry there.
        return created(self._store, entry_key(entry.number), encode_entry(entry), sleep=self._wait)

    # --- reading --------------------------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        after = entry_key(self._history.last) if self._history.last else ""
        listed = self._store.list(LOG_PREFIX, after)
        return [number for number in (entry_number(one.key) for one in listed) if number > self._history.last]

    def _read(self, number: int) -> Entry:
        # A number that the listing missed is read all the same: a folder that grows while it is listed may show a
        # later entry and not an earlier one.
        try:
            return self._read_from(entry_key(number), number)
        except Damaged as problem:
            try:
                entry = self._read_from(copy_key(number), number)
            except Damaged as second:
                key = entry_key(number)
                raise Damaged(
                    f"{self._store.url}/{key}: entry {number} of the log cannot be read, and what came later cannot be "
                    f"judged without it: {problem}; nor can its copy: {second}; restore this object from a copy of the "
                    "store, or start a new store",
                    object_key=key,
                ) from problem
            self._repaired[number] = str(problem)
            return entry

    def _read_from(self, key: str, number: int) -> Entry:
        data = self._retried(lambda: self._store.read(key, ENTRY_LIMIT_BYTES))
        return decode_entry(data, number, f"{self._store.url}/{key}")

    def _retried(self, ask: Callable[[], _T]) -> _T:
        return retried(ask, sleep=self._wait)
