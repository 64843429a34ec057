"""Every call by which a store on a disk touches the disk, in one place, so that drills can stand between.

Paths are absolute. All methods raise OSError and nothing else.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple, Protocol

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY})

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Found(NamedTuple):
    """What a path or a descriptor leads to."""

    device: int
    inode: int
    links: int
    length: int  # bytes
    is_file: bool
    is_folder: bool
    modified_wall_s: float  # by the clock of the file server


class Files(Protocol):
    """The file events of a store. Safe for use by several threads."""

    def make(self, path: Path) -> int:
        """A new empty file, mode 0600, open for writing; FileExistsError when the name is taken."""
        ...

    def set_direct(self, fd: int, *, on: bool) -> bool:
        """Let writes pass by the page cache, or no longer; False: the file system does not do it."""
        ...

    def allocate(self, fd: int, length: int) -> None:
        """Take the room of a whole file at once; its length is ``length`` then."""
        ...

    def truncate(self, fd: int, length: int) -> None:
        """Set the length of a file."""
        ...

    def pwrite(self, fd: int, data: memoryview, at: int) -> int:
        """Write at a place; returns the number of bytes written, which may be fewer than given."""
        ...

    def fsync(self, fd: int) -> None:
        """Bring data and length of a file to the disk."""
        ...

    def fsync_folder(self, path: Path) -> None:
        """Bring the names in a folder to the disk."""
        ...

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        ...

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file; FileExistsError when the name is taken."""
        ...

    def unlink(self, path: Path) -> None:
        """Take a name away."""
        ...

    def mkdir(self, path: Path) -> None:
        """A new folder, mode 0700; FileExistsError when the name is taken."""
        ...

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        ...

    def open_read(self, path: Path) -> int:
        """A descriptor for reading; does not wait when the path is a pipe."""
        ...

    def pread_into(self, fd: int, target: memoryview, at: int) -> int:
        """Read from a place; returns the number of bytes read, 0 at the end."""
        ...

    def find(self, path: Path) -> Found:
        """What a path leads to."""
        ...

    def find_open(self, fd: int) -> Found:
        """What a descriptor leads to."""
        ...

    def names(self, folder: Path) -> list[tuple[str, bool]]:
        """Names in a folder, and whether each is a folder; a symbolic link is none."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Room left for this user."""
        ...


class RealFiles:
    """The kernel's."""

    def make(self, path: Path) -> int:
        """See Files."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)

    def set_direct(self, fd: int, *, on: bool) -> bool:
        """See Files."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            return False
        return True

    def allocate(self, fd: int, length: int) -> None:
        """See Files. Where the file system cannot allocate, only the length is set."""
        # Not os.posix_fallocate: where the kernel refuses, glibc writes a byte into every block instead.
        if _libc.fallocate(fd, 0, 0, length) == 0:
            return
        number = ctypes.get_errno()
        if number not in UNSUPPORTED:
            raise OSError(number, os.strerror(number))
        os.ftruncate(fd, length)

    def truncate(self, fd: int, length: int) -> None:
        """See Files."""
        os.ftruncate(fd, length)

    def pwrite(self, fd: int, data: memoryview, at: int) -> int:
        """See Files."""
        return os.pwrite(fd, data, at)

    def fsync(self, fd: int) -> None:
        """See Files."""
        os.fsync(fd)

    def fsync_folder(self, path: Path) -> None:
        """See Files."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self, fd: int) -> None:
        """See Files."""
        os.close(fd)

    def link(self, source: Path, target: Path) -> None:
        """See Files."""
        target.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        """See Files."""
        path.unlink()

    def mkdir(self, path: Path) -> None:
        """See Files."""
        path.mkdir(FOLDER_MODE)

    def rmdir(self, path: Path) -> None:
        """See Files."""
        path.rmdir()

    def open_read(self, path: Path) -> int:
        """See Files."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def pread_into(self, fd: int, target: memoryview, at: int) -> int:
        """See Files."""
        return os.preadv(fd, [target], at)

    def find(self, path: Path) -> Found:
        """See Files."""
        return _found(path.stat())

    def find_open(self, fd: int) -> Found:
        """See Files."""
        return _found(os.fstat(fd))

    def names(self, folder: Path) -> list[tuple[str, bool]]:
        """See Files."""
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]

    def free_bytes(self, path: Path) -> int:
        """See Files."""
        room = os.statvfs(path)
        return room.f_bavail * room.f_frsize


def _found(status: os.stat_result) -> Found:
    return Found(
        device=status.st_dev,
        inode=status.st_ino,
        links=status.st_nlink,
        length=status.st_size,
        is_file=stat.S_ISREG(status.st_mode),
        is_folder=stat.S_ISDIR(status.st_mode),
        modified_wall_s=status.st_mtime,
    )
