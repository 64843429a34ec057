"""Folders of a store that are there, and whose names are on the disk before anything in them counts as durable."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import Final

from closeranks.checkpoint.files import UNSUPPORTED, Files

TRIES: Final = 100  # of making a folder that sweeps take away as empty


class Folders:
    """Makes folders and brings names to the disk; remembers what is there for good. Safe for several threads."""

    def __init__(self, root: Path, files: Files) -> None:
        self._root = root
        self._files = files
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._lasting: set[Path] = set()  # folders whose own name is on the disk
        self._shown: set[Path] = set()  # folders from which something was shown that may not be on the disk yet
        self.notes: tuple[str, ...] = ()  # what this file system cannot promise

    def make(self, folder: Path) -> None:
        """The folder and those above it exist, and their names are on the disk, whoever made them."""
        for left in reversed(range(TRIES)):
            try:
                for one in reversed(self._unsure(folder)):
                    self._make_lasting(one)
                return
            except FileNotFoundError:
                # A sweep took one away as empty, after we had seen it. Not so the root: its disk was unmounted.
                if left == 0 or not self._is_folder(self._root):
                    raise
                for one in (folder, *folder.parents):
                    if one != self._root and one.is_relative_to(self._root):
                        self.forget(one)

    def forget(self, folder: Path) -> None:
        """The folder is gone: neither it nor what was below it is there any more."""
        with self._lock:
            self._lasting = {one for one in self._lasting if not one.is_relative_to(folder)}

    def fsync(self, folder: Path) -> None:
        """Bring the names in a folder to the disk; noted where the file system does not do that."""
        try:
            self._files.fsync_folder(folder)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self.note_no_fsync(error, "folders")

    def note_no_fsync(self, error: OSError, what: str) -> None:
        """The file system refused an fsync as something that it does not do."""
        name = errno.errorcode.get(error.errno or 0, "an error")
        note = (
            f"{self._root}: the file system does not fsync {what} ({name}): expected that finished saves survive a"
            " power cut, got only that they survive the end of processes; choose another --store for the durable tier"
        )
        with self._lock:
            if note not in self.notes:
                self.notes = (*self.notes, note)

    def show(self, folder: Path) -> None:
        """The caller saw names in this folder that another process may not have brought to the disk yet."""
        with self._lock:
            self._shown.add(folder)

    def settle(self) -> None:
        """Bring to the disk all that was shown, so that what is created next may depend on it."""
        with self._settling:  # whoever comes second waits: what the first took along may be what he saw
            with self._lock:
                shown, self._shown = self._shown, set()
            try:
                for folder in sorted(shown):
                    with contextlib.suppress(FileNotFoundError):
                        self.fsync(folder)
            except OSError:
                with self._lock:
                    self._shown |= shown
                raise

    def _unsure(self, folder: Path) -> list[Path]:
        """The folder and those above it that are not known to last, innermost first; above the root only absent."""
        unsure = []
        at = folder
        while at not in self._lasting and (at.is_relative_to(self._root) or not self._is_folder(at)):
            unsure.append(at)
            at = at.parent
        return unsure

    def _make_lasting(self, folder: Path) -> None:
        self._mkdir(folder)
        # Also when another process made it: its name may not be on the disk yet, and our bytes depend on it.
        self._fsync_above(folder)
        with self._lock:
            self._lasting.add(folder)

    def _mkdir(self, folder: Path) -> None:
        try:
            self._files.mkdir(folder)
        except OSError as error:  # some file servers refuse to make what is there with another number than EEXIST
            if self._is_folder(folder):
                return
            if error.errno == errno.EEXIST:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
            raise

    def _is_folder(self, path: Path) -> bool:
        try:
            return self._files.find(path).is_folder
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _fsync_above(self, folder: Path) -> None:
        above = folder.parent
        try:
            self.fsync(above)
        except PermissionError:
            # The store's root may stand in a folder that this user cannot open; it was there before us then.
            if folder != self._root:
                raise
