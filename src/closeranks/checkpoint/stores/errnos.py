"""What the kernel's error numbers mean for a store, in words a person can act on."""

from __future__ import annotations

import errno
import os
from typing import Final

from closeranks.checkpoint.problems import StoreProblem

TRANSIENT: Final = frozenset(
    {
        errno.EIO,  # a network file system answers it when its server is away for a moment
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ECONNRESET,
        errno.ECONNREFUSED,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.EREMOTEIO,
        errno.ENOLCK,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
    }
)
_EXPECTED: Final = {
    errno.ENOSPC: "room",
    errno.EDQUOT: "room within the quota",
    errno.EROFS: "a file system that can be written",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.ENOTDIR: "a folder",
    errno.ENOENT: "a folder that is there",
    errno.EFBIG: "a file system that takes files of this size",
}
_WAY_OUT: Final = {
    errno.ENOSPC: "free some, keep fewer generations ('closeranks ckpt gc', --keep), or choose another --store",
    errno.EDQUOT: "remove something, have the quota raised, keep fewer generations (--keep), or choose another --store",
    errno.EROFS: "mount it writable, or choose another --store; a disk that became read-only by itself is failing",
    errno.EACCES: "give this user write access to the folder (chown, chmod), or choose another --store",
    errno.EPERM: "give this user write access to the folder (chown, chmod), or choose another --store",
    errno.ENOTDIR: "give a path of which every part is a folder",
    errno.ENOENT: "see that the file system is mounted and that nobody removes the store's folders",
    errno.EFBIG: "choose another file system, or use more writers",
}


def problem_of(error: OSError, doing: str, *, doubtful: bool = False, free_bytes: int | None = None) -> StoreProblem:
    """An error of the kernel as a problem of the store; ``doing`` says where and what: "/data/x: writing 3 bytes"."""
    number = error.errno or 0
    got = f"{os.strerror(number) if number else error} ({errno.errorcode.get(number, 'no number')})"
    if free_bytes is not None and number in (errno.ENOSPC, errno.EDQUOT):
        got += f", {free_bytes:,} bytes free"
    expected = _EXPECTED.get(number, "an answer without an error")
    transient = number in TRANSIENT
    usual = (
        "see the disk's or file server's log; it is tried again" if transient else "see 'man 2 open' for this number"
    )
    return StoreProblem(
        f"{doing}: expected {expected}, got {got}; {_WAY_OUT.get(number, usual)}",
        transient=transient,
        doubtful=doubtful,
    )
