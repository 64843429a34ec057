"""Power cuts: a file layer that writes down what was done, and the disks that a cut may leave of it.

The rules are those of POSIX and no more: data and length of a file last once the file was fsynced, a name in a folder
once the folder was. All else may be there, be missing, or be there in part (by sectors), in any combination: a name
without the data, a later name without an earlier one, zeros where bytes should be.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from closeranks.checkpoint.drill_files import TappedFiles
from closeranks.checkpoint.files import Files

SECTOR_BYTES: Final = 512
_ROOT: Final = 0
_KEPT: Final = (0.0, 0.5, 1.0)  # of what was not fsynced: nothing, some, all

T = TypeVar("T")


class Event(NamedTuple):
    """Something done to the disk. Files and folders are numbered; the recorded root is 0."""

    call: Literal["make", "mkdir", "link", "drop", "write", "resize", "sync", "note"]
    node: int = _ROOT
    folder: int = _ROOT  # whose name it is
    name: str = ""  # also the text of a note
    at: int = 0  # first byte of a write; new length
    data: bytes = b""


class Disk(NamedTuple):
    """What may be found after the power is back."""

    events: int  # happened before the cut
    notes: tuple[str, ...]  # of them
    files: Mapping[str, bytes]  # by path below the root
    folders: tuple[str, ...]  # outer ones first

    def lay_down(self, root: Path) -> None:
        """Make these folders and files below an existing folder."""
        for folder in self.folders:
            (root / folder).mkdir(mode=0o700)
        for path, data in self.files.items():
            (root / path).write_bytes(data)


class RecordingFiles(TappedFiles):
    """Carries calls out one at a time, below a folder that is empty at first, and writes them down."""

    def __init__(self, root: Path, inner: Files | None = None) -> None:
        super().__init__(inner)
        self.events: list[Event] = []
        self._root = root.absolute()
        self._lock = threading.RLock()
        self._nodes: dict[Path, int] = {self._root: _ROOT}
        self._open: dict[int, int] = {}
        self._next = _ROOT + 1
        if any(self._root.iterdir()):
            raise ValueError(f"{root}: expected an empty folder to record in, got one with something in it")

    def note(self, text: str) -> None:
        """Write down that something was acknowledged to somebody at this moment."""
        with self._lock:
            self.events.append(Event("note", name=text))

    def tap(self, call: str, path: Path, do: Callable[[], T]) -> T:
        """One call at a time, so that the order written down is the order of the calls."""
        del call, path
        with self._lock:
            return do()

    def make(self, path: Path) -> int:
        """See Files."""
        with self._lock:
            fd = super().make(path)
            self._open[fd] = self._name("make", path)
            return fd

    def mkdir(self, path: Path) -> None:
        """See Files."""
        with self._lock:
            super().mkdir(path)
            self._name("mkdir", path)

    def link(self, source: Path, target: Path) -> None:
        """See Files."""
        with self._lock:
            super().link(source, target)
            self._name("link", target, self._nodes[source])

    def unlink(self, path: Path) -> None:
        """See Files."""
        with self._lock:
            super().unlink(path)
            self._drop(path)

    def rmdir(self, path: Path) -> None:
        """See Files."""
        with self._lock:
            super().rmdir(path)
            self._drop(path)

    def allocate(self, fd: int, length: int) -> None:
        """See Files."""
        with self._lock:
            super().allocate(fd, length)
            self.events.append(Event("resize", self._open[fd], at=length))

    def truncate(self, fd: int, length: int) -> None:
        """See Files."""
        with self._lock:
            super().truncate(fd, length)
            self.events.append(Event("resize", self._open[fd], at=length))

    def pwrite(self, fd: int, data: memoryview, at: int) -> int:
        """See Files."""
        with self._lock:
            count = super().pwrite(fd, data, at)
            self.events.append(Event("write", self._open[fd], at=at, data=bytes(data[:count])))
            return count

    def fsync(self, fd: int) -> None:
        """See Files."""
        with self._lock:
            super().fsync(fd)
            self.events.append(Event("sync", self._open[fd]))

    def fsync_folder(self, path: Path) -> None:
        """See Files."""
        with self._lock:
            super().fsync_folder(path)
            if path in self._nodes:  # what is above the root lasts
                self.events.append(Event("sync", self._nodes[path]))

    def _name(self, call: Literal["make", "mkdir", "link"], path: Path, node: int | None = None) -> int:
        if node is None:
            node, self._next = self._next, self._next + 1
        self._nodes[path] = node
        self.events.append(Event(call, node, self._nodes[path.parent], path.name))
        return node

    def _drop(self, path: Path) -> None:
        self.events.append(Event("drop", self._nodes.pop(path), self._nodes[path.parent], path.name))


def possible_disks(events: Sequence[Event], seed: int, count: int) -> Iterator[Disk]:
    """So many disks that a power cut at a moment drawn at random may leave; the same seed, the same disks."""
    for case in range(count):
        drawn = random.Random(f"{seed}/{case}")  # noqa: S311 - replayed by its seed
        yield _disk(events[: drawn.randint(0, len(events))], drawn)


def _disk(events: Sequence[Event], drawn: random.Random) -> Disk:
    keep_data, keep_names = drawn.choice(_KEPT), drawn.choice(_KEPT)
    synced = {event.node: place for place, event in enumerate(events) if event.call == "sync"}
    contents: dict[int, bytearray] = {}
    entries: dict[int, dict[str, int]] = {_ROOT: {}}
    for place, event in enumerate(events):
        if event.call == "make":
            contents[event.node] = bytearray()
        elif event.call == "mkdir":
            entries[event.node] = {}
        if event.call in ("make", "mkdir", "link", "drop"):
            if place < synced.get(event.folder, -1) or drawn.random() < keep_names:
                _rename(entries[event.folder], event)
        elif event.call in ("write", "resize"):
            lasting = place < synced.get(event.node, -1)
            _change(contents[event.node], event, drawn, 1.0 if lasting else keep_data)
    notes = tuple(event.name for event in events if event.call == "note")
    files: dict[str, bytes] = {}
    folders: list[str] = []
    _walk(entries, contents, "", _ROOT, files, folders)
    return Disk(len(events), notes, files, tuple(folders))


def _rename(names: dict[str, int], event: Event) -> None:
    if event.call == "drop":
        names.pop(event.name, None)
    else:
        names[event.name] = event.node


def _change(content: bytearray, event: Event, drawn: random.Random, keep: float) -> None:
    """Apply a write or a new length: whole, in part by sectors, or not at all; length and data fare separately."""
    length = event.at + len(event.data)
    if drawn.random() < keep:
        if event.call == "resize":
            del content[event.at :]
        content.extend(bytes(max(0, length - len(content))))
    for begin in range(event.at // SECTOR_BYTES * SECTOR_BYTES, length, SECTOR_BYTES):
        first, last = max(begin, event.at), min(begin + SECTOR_BYTES, length, len(content))
        if first < last and drawn.random() < keep:
            content[first:last] = event.data[first - event.at : last - event.at]


def _walk(
    entries: Mapping[int, Mapping[str, int]],
    contents: Mapping[int, bytearray],
    stem: str,
    folder: int,
    files: dict[str, bytes],
    folders: list[str],
) -> None:
    for name, node in sorted(entries[folder].items()):
        if node in entries:
            folders.append(f"{stem}{name}")
            _walk(entries, contents, f"{stem}{name}/", node, files, folders)
        else:
            files[f"{stem}{name}"] = bytes(contents[node])
