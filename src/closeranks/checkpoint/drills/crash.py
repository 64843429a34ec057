"""Kills processes that save, and cuts their power; then looks at what is left of the store, and goes on with it.

Three kinds of cases. Events: SIGKILL at every call that changes the disk, before it and in the middle of it. Moments:
SIGKILL at a random time, of the process that commits, of the one that writes the second shard, or of both. Cuts: the
disks that a power cut may leave. A case holds when every acknowledged commit restores bit for bit or was retired for
newer ones, nothing restored is a mixture, a further save works, and no garbage stays.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from closeranks.checkpoint.drill_disk import RecordingFiles, possible_disks
from closeranks.checkpoint.drill_files import KillingFiles
from closeranks.checkpoint.drills.children import MEMORY, Child, Ending, alone, ending, kill, report, start
from closeranks.checkpoint.drills.judge import judge
from closeranks.checkpoint.drills.life import Acknowledged, Life, follow, live
from closeranks.checkpoint.stores.directory import DirectoryStore

SAVES: Final = 4  # of a life: enough for incremental saves, retirements and sweeps
_LIVES_OF_A_STORE: Final = 10
_CUTS_OF_A_RECORDING: Final = 25
_VICTIMS: Final = ("lead", "follower", "both")


class Case(NamedTuple):
    """One crash and what came of it."""

    kind: str
    name: str  # replays it
    killed: bool
    acknowledged: int
    restored: int  # generations, all compared bit for bit
    problem: str


def every_event(folder: Path, every: int, seed: int) -> Iterator[Case]:
    """A life for each event, killed there; with ``every`` n only each n-th, beginning at a place from the seed."""
    for midway in (False, True):
        for event in range(seed % every, _events_of_a_life(folder), every):
            root = folder / f"event-{event}-{midway:d}"
            found = ending(start(partial(_killed_at, root, event, midway)))
            yield _judged("event", f"{event}{', midway' * midway}", root, found, 1)
            shutil.rmtree(root, ignore_errors=True)


def random_moments(folder: Path, count: int, seed: int) -> Iterator[Case]:
    """Lives of two processes; who is killed and when comes from the seed, what it hits from the clock."""
    typical_s = _length_of_a_life(folder)
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")  # noqa: S311 - replayed by its seed
        store, life = divmod(number, _LIVES_OF_A_STORE)
        root = folder / f"store-{store}"
        victim, after_s = draw.choice(_VICTIMS), draw.uniform(0, 1.1 * typical_s)
        found = _killed_after(root, 2 * life, victim, after_s)
        case = _judged("moment", f"{number}: {victim} after {after_s * 1000:.1f} ms", root, found, 2 * life + 1)
        yield case
        if life == _LIVES_OF_A_STORE - 1 or case.problem:
            shutil.rmtree(root, ignore_errors=True)


def power_cuts(
    folder: Path, count: int, seed: int, recorder: Callable[[Path], RecordingFiles] = RecordingFiles
) -> Iterator[Case]:
    """Disks that a power cut may leave of two lives one after the other."""
    for first in range(0, count, _CUTS_OF_A_RECORDING):
        cuts = min(_CUTS_OF_A_RECORDING, count - first)
        found = ending(start(partial(_cut, folder / f"cut-{first}", f"{seed}{first}", cuts, recorder)))
        for name, acknowledged, restored, problem in found.reports:
            yield Case("cut", f"{seed}/{first}/{name}", True, int(str(acknowledged)), int(str(restored)), str(problem))
        if found.failed:
            yield Case("cut", f"{seed}/{first}", False, 0, 0, found.failed)


# --- in the children ------------------------------------------------------------------------------------------------


def _killed_at(root: Path, event: int, midway: bool, pipe: int) -> None:
    files = KillingFiles(event, midway=midway)
    live(DirectoryStore(root, files), Life(0, SAVES, lambda one: report(pipe, list(one))))
    report(pipe, ["events", files.seen])


def _leads(root: Path, life: int, follower: socket.socket, pipe: int) -> None:
    live(DirectoryStore(root), Life(life, SAVES, lambda one: report(pipe, list(one)), follower))


def _follows(root: Path, orders: socket.socket, _: int) -> None:
    follow(DirectoryStore(root), orders)


def _looks(root: Path, acknowledged: Sequence[Acknowledged], life: int, pipe: int) -> None:
    report(pipe, ["restored", judge(DirectoryStore(root), acknowledged, life)])


def _cut(folder: Path, seed: str, count: int, recorder: Callable[[Path], RecordingFiles], pipe: int) -> None:
    recorded = folder / "recorded"
    recorded.mkdir(parents=True)
    files = recorder(recorded)
    for life in range(2):
        acknowledge = _noting(files)
        live(DirectoryStore(recorded, files), Life(life, SAVES, acknowledge))
    for number, disk in enumerate(possible_disks(files.events, int(seed), count)):
        root = folder / f"disk-{number}"
        root.mkdir()
        disk.lay_down(root)
        known = [Acknowledged(*map(int, note.split())) for note in disk.notes]
        restored, problem = 0, ""
        try:
            restored = judge(DirectoryStore(root), known, 2)
        except Exception as error:
            problem = f"after event {disk.events}: {error}"
        report(pipe, [f"{number}", len(known), restored, problem])
        shutil.rmtree(root)
    shutil.rmtree(folder)


def _noting(files: RecordingFiles) -> Callable[[Acknowledged], None]:
    return lambda one: files.note(f"{one.generation} {one.mark}")


# --- in the parent --------------------------------------------------------------------------------------------------


def _killed_after(root: Path, life: int, victim: str, after_s: float) -> Ending:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        follower = start(partial(_follows, root, theirs), (ours.fileno(),))
        lead = start(partial(_leads, root, life, ours), (theirs.fileno(), follower.pipe))
    first, second = (follower, lead) if victim == "follower" else (lead, follower)
    hit = kill(first, after_s)
    if victim == "both":
        kill(second, 0.0)
    found = ending(lead)._replace(killed=hit)
    # It ends by itself when nobody orders any more, perhaps beside the look at the store.
    _REST.append(follower)
    return found


_REST: Final[list[Child]] = []


def _judged(kind: str, name: str, root: Path, found: Ending, life: int) -> Case:
    known = [Acknowledged(*map(int, map(str, one))) for one in found.reports if one[0] != "events"]
    looked = ending(start(partial(_looks, root, known, life)))
    while _REST:
        ending(_REST.pop())
    restored = sum(int(str(one[1])) for one in looked.reports)
    return Case(kind, name, found.killed, len(known), restored, found.failed or looked.failed)


def _events_of_a_life(folder: Path) -> int:
    root = folder / "counted"
    found = ending(start(partial(_killed_at, root, -1, False)))
    if found.failed:
        raise RuntimeError(f"an undisturbed life failed: {found.failed}")
    shutil.rmtree(root)
    return next(int(str(one[1])) for one in found.reports if one[0] == "events")


def _length_of_a_life(folder: Path) -> float:
    lengths = []
    for number in range(3):
        began = time.monotonic()
        found = _killed_after(folder / f"timed-{number}", 0, "lead", 60.0)
        lengths.append(time.monotonic() - began)
        while _REST:
            ending(_REST.pop())
        if found.failed:
            raise RuntimeError(f"an undisturbed life failed: {found.failed}")
    return sorted(lengths)[1]


def main(words: Sequence[str] | None = None) -> int:
    """Run the drill; the exit status is 0 when every case held."""
    parser = argparse.ArgumentParser(prog="python -m closeranks.checkpoint.drills.crash", description=__doc__)
    parser.add_argument("--moments", type=int, default=1000, help="kills at random moments (default 1000)")
    parser.add_argument("--cuts", type=int, default=500, help="power cuts (default 500)")
    parser.add_argument("--every", type=int, default=1, help="kill at each n-th event only, 0: at none (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same cases (default 0)")
    parser.add_argument("--folder", type=Path, help="where the stores are made (default: /dev/shm)")
    options = parser.parse_args(words)
    # A kill leaves the page cache alone and cuts are worked out, so memory does as well as a disk, and is quick.
    where = options.folder or (MEMORY if MEMORY.is_dir() else None)
    if where is not None:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="closeranks-crash-", dir=where) as name:
        folder = Path(name)
        cases: list[Iterator[Case]] = [
            every_event(folder, options.every, options.seed) if options.every else iter(()),
            random_moments(folder, options.moments, options.seed) if options.moments else iter(()),
            power_cuts(folder, options.cuts, options.seed),
        ]
        broken = sum(_told(part, options.seed) for part in cases)
    print("held" if not broken else f"BROKEN: {broken} cases")  # noqa: T201 - a command
    return 1 if broken else 0


def _told(cases: Iterator[Case], seed: int) -> int:
    """Print what a kind of cases came to. Returns the number of those that did not hold."""
    began, counts = time.monotonic(), collections.Counter[str]()
    kind = ""
    for case in cases:
        kind = case.kind
        counts.update(cases=1, killed=case.killed, acknowledged=case.acknowledged, restored=case.restored)
        if case.problem:
            counts.update(broken=1)
            print(f"BROKEN {case.kind} {case.name} (--seed {seed}): {case.problem}", flush=True)  # noqa: T201
    if kind:
        numbers = ", ".join(f"{name} {counts[name]}" for name in ("killed", "acknowledged", "restored", "broken"))
        print(f"{kind}s: {counts['cases']}: {numbers}; {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
    return counts["broken"]


if __name__ == "__main__":
    alone()
    sys.exit(main())
