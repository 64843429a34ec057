"""The files that take what others print. A full disk must not decide whether those go on."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ROOM_BYTES: Final = 2**20


def open_log(path: Path) -> int:
    """A descriptor that appends to ``path`` (mode 0600), or to nothing where it cannot be opened or its disk is full.

    For output that goes there by itself: a ``print`` to a full disk is an error of who prints.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return _nowhere()
    if not _has_room(fd):
        close_log(fd)
        return _nowhere()
    return fd


@contextlib.contextmanager
def opened_log(path: Path) -> Iterator[int]:
    """As ``open_log``, and closed afterwards."""
    fd = open_log(path)
    try:
        yield fd
    finally:
        close_log(fd)


def close_log(fd: int) -> None:
    """Close a log. A network file system may tell only now that its disk is full; the descriptor is free even so."""
    with contextlib.suppress(OSError):
        os.close(fd)


def _has_room(fd: int) -> bool:
    try:
        disk = os.fstatvfs(fd)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize >= _ROOM_BYTES


def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
