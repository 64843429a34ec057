"""The objects below a folder, in the order of their keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from closeranks.checkpoint.files import Files
from closeranks.checkpoint.stores.keys import is_key
from closeranks.checkpoint.stores.store import Listed


class Listing:
    """One question: which keys begin with ``prefix`` and come after ``after``. ``show`` hears of each folder opened."""

    def __init__(self, root: Path, files: Files, show: Callable[[Path], None]) -> None:
        self._root, self._files, self._show = root, files, show

    def between(self, prefix: str, after: str) -> Iterator[Listed]:
        """The objects; what is deleted meanwhile may be among them or not."""
        return self._walk(prefix.rpartition("/")[0], prefix, after)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[Listed]:
        at = self._root / folder
        try:
            names = self._files.names(at)
        except (FileNotFoundError, NotADirectoryError):
            return
        self._show(at)
        stem = f"{folder}/" if folder else ""
        # With a slash behind the names of folders, the order of names is the order of whole keys.
        keys = sorted(
            f"{stem}{name}/" if is_folder else f"{stem}{name}"
            for name, is_folder in names
            if is_key(f"{stem}{name}")  # waiting files are none, nor what others keep here
        )
        for key in keys:
            if key.endswith("/"):
                if (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                    yield from self._walk(key[:-1], prefix, after)
            elif key.startswith(prefix) and key > after:
                with contextlib.suppress(FileNotFoundError):
                    found = self._files.find(self._root / key)
                    if found.is_file:
                        yield Listed(key, found.length, found.modified_wall_s)
