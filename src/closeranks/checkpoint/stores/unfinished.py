"""Files that wait for their names: whole and on the disk before anybody can see them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from closeranks.checkpoint.files import Files

FOLDER_NAME: Final = ".unfinished"  # begins with a dot: no key leads into it
KEPT_S: Final = 24 * 3600.0  # a file waits for milliseconds; an older one was left behind by a killed process


class Unfinished:
    """The folder of such files; it is swept once in the life of this object."""

    def __init__(self, root: Path, files: Files) -> None:
        self._folder = root / FOLDER_NAME
        self._files = files
        self._swept = False

    def make(self, fill: Callable[[Path], None]) -> Path:
        """A new file, filled by ``fill`` (which makes it), or none."""
        path = self._folder / secrets.token_hex(16)
        try:
            fill(path)
        except BaseException:
            self.drop(path)
            raise
        if not self._swept:
            self._swept = True
            with contextlib.suppress(OSError):  # the next process tries again
                self._sweep(path)
        return path

    def drop(self, path: Path) -> None:
        """The file is needed no more; one that cannot be removed is swept some day."""
        with contextlib.suppress(OSError):
            self._files.unlink(path)

    def _sweep(self, newest: Path) -> None:
        now_wall_s = self._files.find(newest).modified_wall_s  # by the clock that stamps the others too
        for name, _ in self._files.names(self._folder):
            path = self._folder / name
            with contextlib.suppress(FileNotFoundError):
                if self._files.find(path).modified_wall_s < now_wall_s - KEPT_S:
                    self.drop(path)
