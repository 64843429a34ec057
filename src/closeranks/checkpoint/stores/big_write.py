"""Writes the parts of an object to one file."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

from closeranks.checkpoint.files import Files
from closeranks.checkpoint.stores.store import Buffer, OnPiece

PIECE_BYTES: Final = 8 * 2**20


def write_parts(files: Files, fd: int, parts: Sequence[Buffer], on_piece: OnPiece | None) -> None:
    """Write the parts one after the other to a new file."""
    at = 0
    for part in parts:
        view = part.cast("B")
        for begin in range(0, len(view), PIECE_BYTES):
            piece = view[begin : begin + PIECE_BYTES]
            if on_piece is not None:
                on_piece(at, piece)
            write_all(files, fd, piece, at)
            at += len(piece)


def write_all(files: Files, fd: int, data: memoryview, at: int) -> None:
    """All of the data, however few bytes the kernel takes at a time."""
    done = 0
    while done < len(data):
        count = files.pwrite(fd, data[done:], at + done)
        if count <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += count
