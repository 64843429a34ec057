"""File layers for drills: one that fails as planned, one that kills its own process at a chosen event."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from closeranks.checkpoint.files import Files, Found, RealFiles

CHANGES: Final = frozenset(
    {"make", "allocate", "truncate", "pwrite", "fsync", "fsync_folder", "close", "link", "unlink", "mkdir", "rmdir"}
)

T = TypeVar("T")


class TappedFiles:
    """Hands every call on to other files, by way of one method that a drill overrides."""

    def __init__(self, inner: Files | None = None) -> None:
        self.inner: Files = RealFiles() if inner is None else inner
        self._paths: dict[int, Path] = {}  # of open descriptors
        self._reading: set[int] = set()  # those that cannot write

    def tap(self, call: str, path: Path, do: Callable[[], T]) -> T:
        """Every call passes here: ``do`` carries it out."""
        del call, path
        return do()

    def make(self, path: Path) -> int:
        """See Files."""
        fd = self.tap("make", path, lambda: self.inner.make(path))
        self._paths[fd] = path
        return fd

    def set_direct(self, fd: int, *, on: bool) -> bool:
        """See Files."""
        return self.tap("set_direct", self._paths[fd], lambda: self.inner.set_direct(fd, on=on))

    def allocate(self, fd: int, length: int) -> None:
        """See Files."""
        self.tap("allocate", self._paths[fd], lambda: self.inner.allocate(fd, length))

    def truncate(self, fd: int, length: int) -> None:
        """See Files."""
        self.tap("truncate", self._paths[fd], lambda: self.inner.truncate(fd, length))

    def pwrite(self, fd: int, data: memoryview, at: int) -> int:
        """See Files."""
        return self.tap("pwrite", self._paths[fd], lambda: self.inner.pwrite(fd, data, at))

    def fsync(self, fd: int) -> None:
        """See Files."""
        self.tap("fsync", self._paths[fd], lambda: self.inner.fsync(fd))

    def fsync_folder(self, path: Path) -> None:
        """See Files."""
        self.tap("fsync_folder", path, lambda: self.inner.fsync_folder(path))

    def close(self, fd: int) -> None:
        """See Files. The descriptor is free even if the close is answered by an error, as it is on Linux."""
        call = "close_read" if fd in self._reading else "close"
        self._reading.discard(fd)
        self.tap(call, self._paths.pop(fd), lambda: self.inner.close(fd))

    def link(self, source: Path, target: Path) -> None:
        """See Files."""
        self.tap("link", target, lambda: self.inner.link(source, target))

    def unlink(self, path: Path) -> None:
        """See Files."""
        self.tap("unlink", path, lambda: self.inner.unlink(path))

    def mkdir(self, path: Path) -> None:
        """See Files."""
        self.tap("mkdir", path, lambda: self.inner.mkdir(path))

    def rmdir(self, path: Path) -> None:
        """See Files."""
        self.tap("rmdir", path, lambda: self.inner.rmdir(path))

    def open_read(self, path: Path) -> int:
        """See Files."""
        fd = self.tap("open_read", path, lambda: self.inner.open_read(path))
        self._paths[fd] = path
        self._reading.add(fd)
        return fd

    def pread_into(self, fd: int, target: memoryview, at: int) -> int:
        """See Files."""
        return self.tap("pread_into", self._paths[fd], lambda: self.inner.pread_into(fd, target, at))

    def find(self, path: Path) -> Found:
        """See Files."""
        return self.tap("find", path, lambda: self.inner.find(path))

    def find_open(self, fd: int) -> Found:
        """See Files."""
        return self.tap("find_open", self._paths[fd], lambda: self.inner.find_open(fd))

    def names(self, folder: Path) -> list[tuple[str, bool]]:
        """See Files."""
        return self.tap("names", folder, lambda: self.inner.names(folder))

    def free_bytes(self, path: Path) -> int:
        """See Files."""
        return self.tap("free_bytes", path, lambda: self.inner.free_bytes(path))


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that are answered by an error."""

    errno: int
    call: str = ""  # name of a method of Files; "": any that changes something
    below: str = ""  # a part of the path
    first: int = 0  # number among the calls that match, from 0
    times: int = 1
    done: bool = False  # carried out all the same, and only then answered by the error


class FailingFiles(TappedFiles):
    """Answers chosen calls by an error, as a full disk, a quota or a network file system would."""

    def __init__(self, faults: Sequence[Fault], inner: Files | None = None) -> None:
        super().__init__(inner)
        self._faults = tuple(faults)
        self._seen = [0] * len(self._faults)
        self._lock = threading.Lock()

    def tap(self, call: str, path: Path, do: Callable[[], T]) -> T:
        """Carry the call out, or answer it as planned."""
        fault = self._due(call, path)
        if fault is None:
            return do()
        if fault.done or call.startswith("close"):  # a close that fails has closed
            do()
        raise OSError(fault.errno, os.strerror(fault.errno), str(path))

    def _due(self, call: str, path: Path) -> Fault | None:
        due = None
        with self._lock:
            for place, fault in enumerate(self._faults):
                if (call == fault.call or (not fault.call and call in CHANGES)) and fault.below in str(path):
                    if fault.first <= self._seen[place] < fault.first + fault.times:
                        due = fault
                    self._seen[place] += 1
        return due


class KillingFiles(TappedFiles):
    """Kills its own process, as ``kill -9`` would, at the event of that number; -1: never, it only counts.

    Events are the calls in CHANGES. ``midway``: a write is half done then, any other call done but not answered.
    """

    def __init__(self, event: int, *, midway: bool = False, inner: Files | None = None) -> None:
        super().__init__(inner)
        self.seen = 0  # events so far
        self._event = event
        self._midway = midway
        self._lock = threading.Lock()

    def tap(self, call: str, path: Path, do: Callable[[], T]) -> T:
        """Carry the call out, or end."""
        del path
        if self._is_the_one(call):
            if self._midway:
                do()
            os.kill(os.getpid(), signal.SIGKILL)
        return do()

    def pwrite(self, fd: int, data: memoryview, at: int) -> int:
        """See Files."""
        half = data[: len(data) // 2]
        if self._midway and self.seen == self._event:
            return super().pwrite(fd, half, at)
        return super().pwrite(fd, data, at)

    def _is_the_one(self, call: str) -> bool:
        if call not in CHANGES:
            return False
        with self._lock:
            self.seen += 1
            return self.seen - 1 == self._event
