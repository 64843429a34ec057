"""The parts of an object into one file: past the page cache and by several threads where that is possible.

One file, not several: written in pieces by four threads into room that was allocated before, it takes as long as four
files do, and a shard stays one safetensors file that any reader opens.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from closeranks.checkpoint.files import Files
from closeranks.checkpoint.stores.store import Buffer, OnPiece

PIECE_BYTES: Final = 8 * 2**20
BOUNCE_BYTES: Final = 2**20  # stays in the processor's cache between the copy and the disk's fetch
THREADS: Final = 4
ALIGNED_BYTES: Final = 4096  # addresses, places and lengths of direct writes: enough for every common disk
DIRECT_FROM_BYTES: Final = 4 * 2**20  # below it the page cache is as fast


def write_parts(files: Files, fd: int, parts: Sequence[Buffer], on_piece: OnPiece | None) -> None:
    """Write the parts one after the other to a new file; nothing is known to be on the disk before an fsync.

    Raises:
        OSError: the file holds any part of the bytes.
    """
    spread = _Parts(parts)
    if spread.length < DIRECT_FROM_BYTES:
        _write_in_order(files, fd, spread, 0, on_piece)
    else:
        _Direct(files, fd, spread, on_piece).write()


def write_all(files: Files, fd: int, data: memoryview, at: int) -> None:
    """All of the data, however few bytes the kernel takes at a time."""
    done = 0
    while done < len(data):
        count = files.pwrite(fd, data[done:], at + done)
        if count <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += count


class _Parts:
    """Buffers as one run of bytes."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._views = [part.cast("B") for part in parts if part.nbytes]
        self._begins = [0, *itertools.accumulate(map(len, self._views))]
        self.length = self._begins.pop()

    def between(self, begin: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Views of the bytes from one place to another, each with its own place, in order."""
        part = bisect.bisect_right(self._begins, begin) - 1
        while begin < end:
            inside = begin - self._begins[part]
            view = self._views[part][inside : inside + end - begin]
            yield begin, view
            begin += len(view)
            part += 1


def _write_in_order(files: Files, fd: int, parts: _Parts, begin: int, on_piece: OnPiece | None) -> None:
    for first in range(begin, parts.length, PIECE_BYTES):
        for at, view in parts.between(first, min(first + PIECE_BYTES, parts.length)):
            if on_piece is not None:
                on_piece(at, view)
            write_all(files, fd, view, at)


class _Direct:
    def __init__(self, files: Files, fd: int, parts: _Parts, on_piece: OnPiece | None) -> None:
        self._files, self._fd, self._parts, self._on_piece = files, fd, parts, on_piece
        self._whole = parts.length // ALIGNED_BYTES * ALIGNED_BYTES
        self._todo = iter(range(0, self._whole, PIECE_BYTES))
        self._lock = threading.Lock()
        self._is_direct = False

    def write(self) -> None:
        # Room first: threads that write into it do not wait for each other, and a full disk is known at once.
        self._files.allocate(self._fd, self._parts.length)
        self._is_direct = self._files.set_direct(self._fd, on=True)
        count = min(THREADS, -(-self._whole // PIECE_BYTES))
        with ThreadPoolExecutor(count, "closeranks-write") as pool:
            for done in [pool.submit(self._work) for _ in range(count)]:
                done.result()
        self._to_page_cache()
        _write_in_order(self._files, self._fd, self._parts, self._whole, self._on_piece)

    def _work(self) -> None:
        bounce = memoryview(mmap.mmap(-1, BOUNCE_BYTES))
        try:
            for begin in iter(self._next, None):
                pieces = list(self._parts.between(begin, min(begin + PIECE_BYTES, self._whole)))
                if self._on_piece is not None:
                    for at, view in pieces:
                        self._on_piece(at, view)
                if len(pieces) == 1 and _address(pieces[0][1]) % ALIGNED_BYTES == 0:
                    self._put(pieces[0][1], begin)
                else:
                    self._put_copied(begin, bounce)
        except BaseException:
            with self._lock:
                self._todo = iter(())  # the others need not go on
            raise

    def _put_copied(self, begin: int, bounce: memoryview) -> None:
        """The disk fetches direct writes from aligned memory only."""
        for first in range(begin, min(begin + PIECE_BYTES, self._whole), BOUNCE_BYTES):
            filled = 0
            for _, view in self._parts.between(first, min(first + BOUNCE_BYTES, self._whole)):
                bounce[filled : filled + len(view)] = view
                filled += len(view)
            self._put(bounce[:filled], first)

    def _next(self) -> int | None:
        with self._lock:
            return next(self._todo, None)

    def _put(self, data: memoryview, at: int) -> None:
        if self._is_direct:
            try:
                write_all(self._files, self._fd, data, at)
            except OSError as error:
                # Some file systems take the flag and refuse the write, and a short write ends at any byte.
                if error.errno != errno.EINVAL:
                    raise
                self._to_page_cache()
            else:
                return
        write_all(self._files, self._fd, data, at)

    def _to_page_cache(self) -> None:
        with self._lock:
            if self._is_direct:
                self._files.set_direct(self._fd, on=False)
                self._is_direct = False


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)
