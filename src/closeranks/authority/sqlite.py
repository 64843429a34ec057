"""A register in a SQLite file: several runs in one file, for candidates on one machine."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from closeranks.authority.bounded import Bounded
from closeranks.authority.register import ANSWER_S, NOTHING, Held, RegisterError, checked

_MODE: Final = 0o600
_BUSY_S: Final = ANSWER_S / 2
_TABLE: Final = "CREATE TABLE IF NOT EXISTS register (run TEXT PRIMARY KEY, version TEXT NOT NULL, value BLOB NOT NULL)"


class SqliteRegister:
    """One row. No write-ahead log: it would need memory that is shared between all machines of a network file system.

    A transaction takes the file's lock before it looks, so nothing comes between look and write. Versions are random:
    not even a file that was deleted and made anew repeats one.
    """

    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._calls = Bounded(f"sqlite:{path}")

    async def read(self) -> Held:
        """See Register."""
        return await self._ask(self._held)

    async def write(self, value: bytes, expected: Held) -> Held:
        """See Register."""
        checked(value)

        def swap(database: sqlite3.Connection) -> Held:
            held = self._held(database)
            if value == held.value or held.version != expected.version:
                return held
            ours = Held(value, secrets.token_hex(8))
            database.execute("INSERT OR REPLACE INTO register VALUES (?, ?, ?)", (self._run, ours.version, value))
            return ours

        return await self._ask(swap)

    async def close(self) -> None:
        """See Register."""

    def _held(self, database: sqlite3.Connection) -> Held:
        row = database.execute("SELECT value, version FROM register WHERE run = ?", (self._run,)).fetchone()
        return NOTHING if row is None else Held(bytes(row[0]), str(row[1]))

    async def _ask(self, question: Callable[[sqlite3.Connection], Held]) -> Held:
        def ask() -> Held:
            try:
                with self._transaction() as database:
                    return question(database)
            except (sqlite3.Error, OSError) as error:
                raise RegisterError(
                    f"sqlite:{self._path}: expected a register of leaders, got {error}; check that its folder exists"
                    " and has room, can be written, and that the file is nothing else"
                ) from error

        return await self._calls.call(ask, ANSWER_S)

    def _make(self) -> None:
        """SQLite would make the file with the mode of the umask.

        A file that is there is never opened here: closing it would drop all locks that this process has on it, also
        those of a call that goes on in another thread (POSIX), and another process could come between look and write.
        """
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._make()
        with closing(sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous=FULL")
            database.execute("BEGIN IMMEDIATE")
            try:
                database.execute(_TABLE)
                yield database
            except BaseException:
                database.rollback()
                raise
            database.commit()
