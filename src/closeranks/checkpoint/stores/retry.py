"""Tries again what failed for a moment, and reads back what may have happened all the same."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final, TypeVar

from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.stores.store import Store
from closeranks.decide import retry_budget
from closeranks.decide.retry_budget import Backoff, Budget, GiveUp, Request

TRIES: Final = 4  # the first included: about two seconds in all, then it is the next save's turn
BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=4.0)

T = TypeVar("T")
Sleep = Callable[[float], None]
_until_s: ContextVar[float] = ContextVar("until_s", default=math.inf)  # of the monotonic clock


@contextlib.contextmanager
def retrying_until(until_s: float) -> Iterator[None]:
    """What is asked of a store inside, in this thread, is not tried again past this instant of the monotonic clock."""
    token = _until_s.set(min(until_s, _until_s.get()))
    try:
        yield
    finally:
        _until_s.reset(token)


class _Purse:
    """The budget that all requests of this process draw on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._budget = Budget(at_s=time.monotonic())

    def succeeded(self) -> None:
        with self._lock:
            self._budget = retry_budget.succeeded(self._budget, time.monotonic())

    def wait_s(self, failures: int, tries: int) -> float | None:
        """How long to wait before the next try; None: there is none."""
        request = Request(failures=failures, tries=tries, until_s=_until_s.get())
        share = random.random()  # noqa: S311 - spreads load, hides nothing
        with self._lock:
            self._budget, outcome = retry_budget.failed(self._budget, request, BACKOFF, time.monotonic(), share)
        return None if isinstance(outcome, GiveUp) else outcome.wait_s


_purse: Final = _Purse()


def retried(do: Callable[[], T], *, tries: int = TRIES, sleep: Sleep = time.sleep) -> T:
    """The result of ``do``, which is called again after a transient problem, at most ``tries`` times in all.

    Raises:
        StoreProblem: the last one. A doubtful problem is not tried again: whoever asked has to read back first.
    """
    failures = 0
    while True:
        try:
            result = do()
        except StoreProblem as problem:
            failures += 1
            if not problem.transient or problem.doubtful or (wait_s := _purse.wait_s(failures, tries)) is None:
                raise
        else:
            _purse.succeeded()
            return result
        sleep(wait_s)


def created(store: Store, key: str, data: bytes, *, tries: int = TRIES, sleep: Sleep = time.sleep) -> bool:
    """Create an object whose bytes nobody else could have written (they hold a nonce), through failures and doubt.

    Returns:
        Whether the object under the key is ours, whatever the answers said.

    Raises:
        StoreProblem: it is not known to be there; ``doubtful`` when it may be there or still appear.
    """
    doubtful, failures = False, 0
    while True:
        try:
            # After a doubtful answer a second create is the question itself: it finds our first one, or makes it.
            ours = store.create(key, data) or _holds(store, key, data)
        except StoreProblem as problem:
            failures += 1
            doubtful = doubtful or problem.doubtful
            worth_it = problem.transient or problem.doubtful
            if not worth_it or (wait_s := _purse.wait_s(failures, tries)) is None:
                raise StoreProblem(str(problem), transient=problem.transient, doubtful=doubtful) from problem
        else:
            _purse.succeeded()
            return ours
        sleep(wait_s)


def _holds(store: Store, key: str, data: bytes) -> bool:
    try:
        return store.read(key, max(len(data), 1)) == data
    except Damaged:  # longer than ours, or deleted meanwhile
        return False
