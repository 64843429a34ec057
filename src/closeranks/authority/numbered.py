"""A register in the run's store: objects with growing numbers, each created only if absent; the newest counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from closeranks.authority.bounded import Bounded
from closeranks.authority.register import ANSWER_S, NOTHING, VALUE_BYTES_MAX, Held, RegisterError, checked
from closeranks.checkpoint.problems import CheckpointProblem, Damaged
from closeranks.checkpoint.stores.keys import is_key
from closeranks.checkpoint.stores.retry import created
from closeranks.checkpoint.stores.store import Store

PREFIX: Final = "lead/"
KEPT: Final = 100
"""A number is deleted once the newest is so much higher. Then a late writer could create it once more."""

_DIGITS: Final = 16
_TRIES: Final = 2  # the second asks what became of the first; more do not fit into the bound
_ROUNDS: Final = 5  # the newest object may be deleted between listing and reading only if others write so often


class NumberedRegister:
    """Writing after number n is creating n+1. It stays out of the way of the store's log and data.

    A writer that slept while others wrote more than ``KEPT`` values finds n+1 absent again, so everybody looks at the
    newest number *after* creating: unless it is far ahead, n+1 was never deleted, and creating it was the one write
    after n. The newest number itself is never deleted. Exclusion is the store's (``checkpoint.stores.opening.probe``).

    The store has to be there already: a folder made here could be one below a file system that is not mounted, and
    every node would lead in its own.
    """

    def __init__(self, store: Store, run: str) -> None:
        name = run if is_key(run) and "/" not in run else hashlib.sha256(run.encode()).hexdigest()
        self._store = store
        self._prefix = f"{PREFIX}{name}/"
        self._where = f"{store.url} {self._prefix}"
        self._calls = Bounded(self._where)
        self._known = 0  # the newest number seen: nothing below it is of interest
        self._swept = False

    async def read(self) -> Held:
        """See Register."""
        return await self._ask(self._newest)

    async def write(self, value: bytes, expected: Held) -> Held:
        """See Register."""
        checked(value)
        return await self._ask(lambda: self._swap(value, expected))

    async def close(self) -> None:
        """See Register. Closes the store, which is the register's own."""
        self._store.close()

    async def _ask(self, question: Callable[[], Held]) -> Held:
        def ask() -> Held:
            try:
                return question()
            except CheckpointProblem as problem:
                raise RegisterError(str(problem)) from problem

        return await self._calls.call(ask, ANSWER_S)

    def _swap(self, value: bytes, expected: Held) -> Held:
        number = int(expected.version or 0) + 1
        if not created(self._store, self._key(number), value, tries=_TRIES):
            self._known = max(self._known, number)
            return self._newest()
        newest = max(self._numbers(number), default=number)
        if newest >= number + KEPT:
            self._store.delete([self._key(number)])
            return self._newest()
        self._known = max(self._known, newest)
        self._sweep(number)
        return Held(value, str(number))

    def _newest(self) -> Held:
        for _ in range(_ROUNDS):
            number = max(self._numbers(self._known), default=self._known)
            value = self._value(number)
            # A folder of a network file system may show its newest entries late; reading one asks the server.
            while (later := self._value(number + 1)) is not None:
                number, value = number + 1, later
            self._known = max(self._known, number)
            if value is not None:
                return Held(value, str(number))
            if number == 0:
                return NOTHING
        raise RegisterError(f"{self._where}: expected object {number}, got none {_ROUNDS} times; see who deletes there")

    def _value(self, number: int) -> bytes | None:
        try:
            return self._store.read(self._key(number), VALUE_BYTES_MAX)
        except Damaged:
            return None

    def _numbers(self, least: int) -> list[int]:
        after = self._key(least - 1) if least else ""
        names = (row.key.removeprefix(self._prefix) for row in self._store.list(self._prefix, after))
        return [int(name) for name in names if len(name) == _DIGITS and name.isdecimal()]

    def _sweep(self, newest: int) -> None:
        """Delete what is too old: one number after each write, and before that once what others left behind."""
        old = range(newest - KEPT, newest - KEPT + 1)
        numbers = list(old) if self._swept else [number for number in self._numbers(0) if number < old.stop]
        self._store.delete([self._key(number) for number in numbers if number > 0])
        self._swept = True

    def _key(self, number: int) -> str:
        return f"{self._prefix}{number:0{_DIGITS}d}"
