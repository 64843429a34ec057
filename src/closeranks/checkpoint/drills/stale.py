"""Stops a process in the middle of a save, lets two further terms go by, wakes it, and looks whether anything changed.

For every call that the process makes to the store in a save and the retention and sweep after it (for a folder: for
every call that changes the disk as well), before the call and after it was carried out. Nothing that can be seen may
change: no entry of the log, no generation, no byte of one. The process must learn that it was fenced, and what it wrote
into nothing must be swept.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.drill_files import CHANGES, TappedFiles
from closeranks.checkpoint.drills.children import MEMORY, Child, alone, ending, report, start
from closeranks.checkpoint.drills.judge import judge
from closeranks.checkpoint.drills.life import Acknowledged, Life, live
from closeranks.checkpoint.drills.toy import marks
from closeranks.checkpoint.entries import ENTRY_LIMIT_BYTES
from closeranks.checkpoint.format import LOG_PREFIX
from closeranks.checkpoint.problems import Fenced
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.opening import open_store
from closeranks.checkpoint.stores.store import Buffer, Listed, OnPiece, Store

_SAVES: Final = 3  # of each life; the sleeper is stopped in its second, which refers to the first
_T = TypeVar("_T")


class Sleep(NamedTuple):
    """Where a process stops itself."""

    call: int  # number of the call, -1: never
    after: bool  # it was carried out, and the answer not yet heard

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} call {self.call}"


class Sleeper:
    """Counts calls, and stops its own process (SIGSTOP) at one of them."""

    def __init__(self, sleep: Sleep) -> None:
        self.calls = 0
        self._sleep = sleep
        self._lock = threading.Lock()

    def call(self, do: Callable[[], _T]) -> _T:
        """Carry it out, with the stop before or after it."""
        with self._lock:
            stops, self.calls = self.calls == self._sleep.call, self.calls + 1
        if stops and not self._sleep.after:
            os.kill(os.getpid(), signal.SIGSTOP)
        answer = do()
        if stops and self._sleep.after:
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer


class SleepingFiles(TappedFiles):
    """Stops at a call that changes the disk."""

    def __init__(self, sleeper: Sleeper) -> None:
        super().__init__()
        self._sleeper = sleeper

    def tap(self, call: str, path: Path, do: Callable[[], _T]) -> _T:
        """See TappedFiles."""
        del path
        return self._sleeper.call(do) if call in CHANGES else do()


class SleepingStore:
    """Stops at a call of a store, of any kind."""

    def __init__(self, inner: Store, sleeper: Sleeper) -> None:
        self.url, self._inner, self._sleeper = inner.url, inner, sleeper

    def create(self, key: str, data: bytes) -> bool:
        """See Store."""
        return self._sleeper.call(lambda: self._inner.create(key, data))

    def write(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None = None) -> int:
        """See Store."""
        return self._sleeper.call(lambda: self._inner.write(key, parts, on_piece))

    def read_into(self, key: str, begin: int, target: Buffer) -> None:
        """See Store."""
        self._sleeper.call(lambda: self._inner.read_into(key, begin, target))

    def read(self, key: str, limit_bytes: int) -> bytes:
        """See Store."""
        return self._sleeper.call(lambda: self._inner.read(key, limit_bytes))

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """See Store."""
        return iter(self._sleeper.call(lambda: tuple(self._inner.list(prefix, after))))

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        for key in keys:
            self._sleeper.call(partial(self._inner.delete, [key]))

    def close(self) -> None:
        """See Store."""
        self._inner.close()


class Place(NamedTuple):
    """Where the stores of a drill are, and which of their calls are counted."""

    url: str  # of a folder or a prefix; every case has one of its own below it
    of_files: bool = False

    def store(self, case: str) -> Store:
        """The store of a case, in this process."""
        head, mark, query = self.url.partition("?")
        if "://" not in head:
            (Path(head) / case).mkdir(parents=True, exist_ok=True)
        return open_store(f"{head}/{case}{mark}{query}")

    def sleeping(self, case: str, sleeper: Sleeper) -> Store:
        """The same, with its calls counted."""
        if self.of_files:
            return DirectoryStore(Path(self.url) / case, SleepingFiles(sleeper))
        return SleepingStore(self.store(case), sleeper)


NOT_REACHED: Final = "not reached"


def drill(place: Place, every: int) -> Iterator[tuple[str, str]]:
    """A case for each n-th call: its name, and what did not hold, or "" or NOT_REACHED.

    Threads make the number of calls differ a little from life to life: one may end before its last calls are reached.
    """
    first, last = _calls_of_a_save(place)
    for after in (False, True):
        for call in range(first, last, every):
            sleep = Sleep(call, after)
            yield str(sleep), _case(place, f"{call}-{after:d}", sleep)


def _case(place: Place, name: str, sleep: Sleep) -> str:
    sleeper = start(partial(_sleeps, place, name, sleep))
    state = os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if state is None or state.si_code != os.CLD_STOPPED:
        return ending(sleeper).failed or NOT_REACHED
    try:
        for life in (1, 2):
            lived = ending(start(partial(_lives, place, name, life)))
            if lived.failed:
                return f"life {life} failed beside the stopped process: {lived.failed}"
        before = _seen(place, name)
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
        woken = ending(sleeper)
    problem = woken.failed or _outcome(woken.reports)
    if not problem and _seen(place, name) != before:
        problem = "what can be seen has changed"
    return problem or ending(start(partial(_judges, place, name))).failed


def _outcome(reports: tuple[list[object], ...]) -> str:
    return "" if reports and reports[-1][0] == "fenced" else f"it was not told that it was fenced: {reports[-1:]}"


def _seen(place: Place, name: str) -> object:
    child: Child = start(partial(_shows, place, name))
    found = ending(child)
    return found.failed or found.reports


def _calls_of_a_save(place: Place) -> tuple[int, int]:
    """From the first acknowledgement of a life to its second, retention and sweep included."""
    found = ending(start(partial(_sleeps, place, "counted", Sleep(-1, after=False))))
    if found.failed:
        raise RuntimeError(f"an undisturbed life failed: {found.failed}")
    counts = [int(str(one[1])) for one in found.reports if one[0] == "calls"]
    return counts[0], counts[2]  # also what follows the second, up to the third


# --- in the children ------------------------------------------------------------------------------------------------


def _sleeps(place: Place, name: str, sleep: Sleep, pipe: int) -> None:
    sleeper = Sleeper(sleep)
    store = place.sleeping(name, sleeper)
    try:
        live(store, Life(0, _SAVES, lambda _: report(pipe, ["calls", sleeper.calls])))
    except Fenced as fenced:
        report(pipe, ["fenced", str(fenced)])


def _lives(place: Place, name: str, life: int, _: int) -> None:
    live(place.store(name), Life(life, _SAVES, lambda _: None))


def _shows(place: Place, name: str, pipe: int) -> None:
    store = place.store(name)
    for listed in store.list(LOG_PREFIX):
        report(pipe, [listed.key, store.read(listed.key, ENTRY_LIMIT_BYTES).decode()])
    report(pipe, ["marks", sorted(marks(store, CommitLog(store).refresh()).items())])


def _judges(place: Place, name: str, _: int) -> None:
    store = place.store(name)
    generations = CommitLog(store).refresh().generations.values()
    known = [Acknowledged(g.number, g.manifest.data_position["mark"]) for g in generations]
    judge(store, known, life=3)


def main(words: Sequence[str] | None = None) -> int:
    """Run the drill; the exit status is 0 when every case held."""
    parser = argparse.ArgumentParser(prog="python -m closeranks.checkpoint.drills.stale", description=__doc__)
    parser.add_argument("--store", metavar="URL", help="an empty place in an object store (default: a folder)")
    parser.add_argument("--every", type=int, default=1, help="stop at each n-th call only (default 1)")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="closeranks-stale-", dir=MEMORY if MEMORY.is_dir() else None) as name:
        places = [Place(options.store)] if options.store else [Place(f"{name}/a"), Place(f"{name}/b", of_files=True)]
        broken = sum(_told(place, options.every) for place in places)
    print("held" if not broken else f"BROKEN: {broken} cases")  # noqa: T201 - a command
    return 1 if broken else 0


def _told(place: Place, every: int) -> int:
    broken = cases = 0
    for name, problem in drill(place, every):
        cases += problem != NOT_REACHED
        if problem not in ("", NOT_REACHED):
            broken += 1
            print(f"BROKEN {name}: {problem}", flush=True)  # noqa: T201 - a command
    what = "calls of files" if place.of_files else "calls of the store"
    print(f"{what}: stopped at {cases}, woken after two terms, broken {broken}", flush=True)  # noqa: T201 - a command
    return broken


if __name__ == "__main__":
    alone()
    sys.exit(main())
