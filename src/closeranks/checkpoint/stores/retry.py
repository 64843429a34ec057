"""Tries again what failed for a moment, and reads back what may have happened all the same."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from closeranks.checkpoint.problems import Damaged, StoreProblem
from closeranks.checkpoint.stores.store import Store

TRIES: Final = 4  # the first included: about two seconds in all, then it is the next save's turn
FIRST_WAIT_S: Final = 0.25

T = TypeVar("T")
Sleep = Callable[[float], None]


def retried(do: Callable[[], T], *, tries: int = TRIES, sleep: Sleep = time.sleep) -> T:
    """The result of ``do``, which is called again after a transient problem, at most ``tries`` times in all.

    Raises:
        StoreProblem: the last one. A doubtful problem is not tried again: whoever asked has to read back first.
    """
    for round_ in range(tries - 1):
        try:
            return do()
        except StoreProblem as problem:
            if not problem.transient or problem.doubtful:
                raise
        sleep(_wait_s(round_))
    return do()


def created(store: Store, key: str, data: bytes, *, tries: int = TRIES, sleep: Sleep = time.sleep) -> bool:
    """Create an object whose bytes nobody else could have written (they hold a nonce), through failures and doubt.

    Returns:
        Whether the object under the key is ours, whatever the answers said.

    Raises:
        StoreProblem: it is not known to be there; ``doubtful`` when it may be there or still appear.
    """
    doubtful = False
    for round_ in range(tries):
        try:
            # After a doubtful answer a second create is the question itself: it finds our first one, or makes it.
            return store.create(key, data) or _holds(store, key, data)
        except StoreProblem as problem:
            doubtful = doubtful or problem.doubtful
            if round_ == tries - 1 or not (problem.transient or problem.doubtful):
                raise StoreProblem(str(problem), transient=problem.transient, doubtful=doubtful) from problem
        sleep(_wait_s(round_))
    raise AssertionError


def _holds(store: Store, key: str, data: bytes) -> bool:
    try:
        return store.read(key, max(len(data), 1)) == data
    except Damaged:  # longer than ours, or deleted meanwhile
        return False


def _wait_s(round_: int) -> float:
    # Doubling, and drawn from the upper half, so that many writers do not come back at the same moment.
    return FIRST_WAIT_S * float(2**round_) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, hides nothing
