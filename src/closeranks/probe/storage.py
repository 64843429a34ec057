"""Storage that does not give back what was written to it, or takes too long to say that it has it."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import blake3
import numpy as np

from closeranks.probe.outcome import Failed, Outcome, Passed, Scarce, Unknown

_BLOCK_BYTES: Final = 2**20


def check_storage(folder: Path, size_bytes: int, progress: Callable[[float], None] = lambda _: None) -> Outcome:
    """Write a file of random bytes in ``folder``, have it reach the disk, read it back past the cache, compare.

    The file has no name, so nothing is left behind, however this ends.
    """
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        try:
            fd = _unnamed(folder)
        except OSError as error:
            return _refused(f"no file can be made in {folder}", error)
    try:
        return _write_and_read(fd, size_bytes, progress)
    except OSError as error:
        return _refused(f"writing {size_bytes / 2**20:.0f} MiB in {folder}", error)
    finally:
        os.close(fd)


def _refused(what: str, error: OSError) -> Failed:
    kind = Scarce if error.errno in (errno.ENOSPC, errno.EDQUOT) else Failed
    return kind(f"{what}: {error.strerror}")


def _unnamed(folder: Path) -> int:
    """For file systems that cannot make a file without a name."""
    path = folder / f".probe-{os.getpid()}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    path.unlink()
    return fd


def _write_and_read(fd: int, size_bytes: int, progress: Callable[[float], None]) -> Outcome:
    draw = np.random.default_rng(int.from_bytes(os.urandom(8), "big"))  # what is new cannot be in a cache from before
    wanted, found = blake3.blake3(), blake3.blake3()
    began_s = time.monotonic()
    for start in range(0, size_bytes, _BLOCK_BYTES):
        block = draw.bytes(min(_BLOCK_BYTES, size_bytes - start))
        wanted.update(block)
        _write_all(fd, block)
        progress(0.5 * start / size_bytes)
    os.fsync(fd)
    written_s = time.monotonic()
    with contextlib.suppress(OSError):  # without it the cache answers, and less is known
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    for start in range(0, size_bytes, _BLOCK_BYTES):
        found.update(os.pread(fd, min(_BLOCK_BYTES, size_bytes - start), start))
        progress(0.5 + 0.5 * start / size_bytes)
    read_s = time.monotonic()
    if found.digest() != wanted.digest():
        return Failed(f"{size_bytes / 2**20:.0f} MiB were written, and other bytes came back")
    if size_bytes == 0:
        return Unknown("no bytes were asked for")
    rates = (size_bytes / 2**20 / max(s, 1e-9) for s in (written_s - began_s, read_s - written_s))
    return Passed("written with fsync at {:.0f} MiB/s, read back at {:.0f} MiB/s".format(*rates))


def _write_all(fd: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(fd, view) :]
