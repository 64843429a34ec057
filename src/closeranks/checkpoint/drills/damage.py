"""Flips, cuts, deletes and swaps bytes of a store, and looks whether any of it is ever taken for good.

Every case damages a sound store in one way and restores from it. It holds when the restore gives a generation bit for
bit as it was saved (from another home, or an earlier one), or refuses in words. Where nothing but the log was damaged,
and one of the two copies of each entry is as it was, it must not even refuse.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.drills.subject import build, restore
from closeranks.checkpoint.keys import copied_number, entry_number
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.memory import MemoryStore
from closeranks.checkpoint.stores.store import Store

Objects = Mapping[str, bytes]
Harm = Callable[[random.Random, Objects, str], dict[str, bytes | None]]
"""What the damaged objects are instead; None: gone. The key says which one is to be damaged."""

BROKEN: Final = "broken"


class Verdict(NamedTuple):
    """What a case came to."""

    outcome: str  # unaffected, repaired, earlier, refused, or BROKEN
    harm: str
    key: str
    detail: str


def flip(draw: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """Some bits of a range."""
    data = bytearray(objects[key])
    begin, end = _range(draw, len(data))
    for at in {begin, end - 1, *(draw.randrange(begin, end) for _ in range(draw.randrange(4)))}:
        data[at] ^= 1 << draw.randrange(8)
    return {key: bytes(data)}


def overwrite(draw: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """A range with zeros, or with noise."""
    data = objects[key]
    begin, end = _range(draw, len(data))
    return {key: data[:begin] + draw.choice((bytes(end - begin), draw.randbytes(end - begin))) + data[end:]}


def truncate(draw: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """The end is missing."""
    return {key: objects[key][: draw.randrange(len(objects[key]))]}


def cut_out(draw: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """A range is missing, what comes after it moves up."""
    begin, end = _range(draw, len(objects[key]))
    return {key: objects[key][:begin] + objects[key][end:]}


def lengthen(draw: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """Something is inserted."""
    at = draw.randrange(len(objects[key]) + 1)
    return {key: objects[key][:at] + draw.randbytes(draw.randrange(1, 5000)) + objects[key][at:]}


def delete(_: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """The whole object is gone."""
    del objects
    return {key: None}


def swap_inside(draw: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """Two ranges of one object change places."""
    data = objects[key]
    a, b, c, d = sorted(draw.randrange(len(data) + 1) for _ in range(4))
    return {key: data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]}


def swap(draw: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """Two objects change places."""
    other = draw.choice(sorted(objects))
    return {key: objects[other], other: objects[key]}


def splice(draw: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """A range has the bytes that another object, of the same kind where there is one, has there."""
    kind = key.rpartition(".")[2]
    other = objects[draw.choice([one for one in sorted(objects) if one.endswith(kind)])]
    begin, end = _range(draw, len(objects[key]))
    return {key: objects[key][:begin] + other[begin:end] + objects[key][end:]}


def roll_back(draw: random.Random, objects: Objects, key: str) -> dict[str, bytes | None]:
    """An object is replaced by an older one of its kind, whole."""
    kind = key.rpartition(".")[2]
    return {key: objects[draw.choice([one for one in sorted(objects) if one.endswith(kind)])]}


HARMS: Final[tuple[Harm, ...]] = (
    flip,
    flip,
    overwrite,
    truncate,
    cut_out,
    lengthen,
    delete,
    swap_inside,
    swap,
    splice,
    roll_back,
)  # a flipped bit is what disks do most: it is drawn twice as often


class _Second(MemoryStore):
    """Counts what is read from it: then something was repaired."""

    reads = 0

    def read(self, key: str, limit_bytes: int) -> bytes:
        """See Store."""
        self.reads += 1
        return super().read(key, limit_bytes)


class Bench:
    """A store to damage, its truth, and a second home with the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = DirectoryStore(folder)
        self._truths = build(self._store)
        self.objects: dict[str, bytes] = {item.key: (folder / item.key).read_bytes() for item in self._store.list("")}
        self._second = _Second()
        for key, data in self.objects.items():
            self._second.create(key, data)

    def judge(self, seed: int, number: int) -> Verdict:
        """One case, and the store as it was before it."""
        draw = random.Random(f"{seed} {number}")  # noqa: S311 -- replayed, not secret
        key, harm = draw.choice(sorted(self.objects)), draw.choice(HARMS)
        homes: tuple[Store, ...] = draw.choice(((self._store, self._second), (self._store,)))
        changed = harm(draw, self.objects, key)
        try:
            for one, data in changed.items():
                self._put(one, data)
            outcome, detail = self._restored(homes, harmless=self._is_harmless(changed))
        finally:
            for one in changed:
                self._put(one, self.objects[one])
        return Verdict(outcome, harm.__name__, key, detail)

    def _is_harmless(self, changed: Mapping[str, bytes | None]) -> bool:
        """Nothing is another than it was, but for one of the two copies of log entries."""
        damaged = [key for key, data in changed.items() if self.objects[key] != data]
        entries = [entry_number(key) or copied_number(key) for key in damaged]
        newest = max(map(entry_number, self.objects))
        return all(0 < number < newest for number in entries) and len(set(entries)) == len(entries)

    def _restored(self, homes: Sequence[Store], *, harmless: bool) -> tuple[str, str]:
        self._second.reads = 0
        try:
            generation, state = restore(self._store, homes)
        except CheckpointProblem as problem:
            return (BROKEN if harmless else "refused"), str(problem)
        except Exception as error:
            return BROKEN, f"expected a checkpoint problem with words, got {type(error).__name__}: {error}"
        if state != self._truths.get(generation):
            return BROKEN, f"generation {generation} was restored with other content than it was saved with"
        if generation != max(self._truths):
            return (BROKEN if harmless else "earlier"), f"generation {generation}"
        log = CommitLog(self._store)
        log.refresh()
        return ("repaired" if self._second.reads or log.repaired else "unaffected"), ""

    def _put(self, key: str, data: bytes | None) -> None:
        path = self._folder / key
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(data)


def _range(draw: random.Random, length: int) -> tuple[int, int]:
    begin = draw.randrange(length)
    return begin, draw.choice((begin + 1, min(length, begin + 8), draw.randrange(begin, length) + 1))


def main(words: Sequence[str] | None = None) -> int:
    """Run the drill; the exit status is 0 when every case held."""
    parser = argparse.ArgumentParser(prog="python -m closeranks.checkpoint.drills.damage", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same cases (default 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to replay one with --cases 1")
    options = parser.parse_args(words)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    broken = 0
    with tempfile.TemporaryDirectory(prefix="closeranks-damage-") as folder:
        bench = Bench(Path(folder))
        for number in range(options.first, options.first + options.cases):
            verdict = bench.judge(options.seed, number)
            counts[verdict.harm, verdict.outcome] += 1
            if verdict.outcome == BROKEN:
                broken += 1
                replay = f"--seed {options.seed} --first {number} --cases 1"
                _say(f"BROKEN {verdict.harm} of {verdict.key}: {verdict.detail}; replay with {replay}")
    for (harm, outcome), count in sorted(counts.items()):
        _say(f"{harm:12} {outcome:24} {count:6}")
    _say(f"{'BROKEN' if broken else 'held'}: {options.cases - broken} of {options.cases} cases, seed {options.seed}")
    return 1 if broken else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
