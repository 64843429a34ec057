"""Memory of this node: how much a process may still take, and taking it in one call."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; older kernels refuse it and fault page by page under the first copy
_LIBC = ctypes.CDLL(None, use_errno=True)


def available_bytes() -> int:
    """What could be taken now without anybody being killed for it: of the machine, and of this process's cgroups."""
    found = [_of_machine()]
    with contextlib.suppress(OSError):
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        found += _of_cgroups(Path("/sys/fs/cgroup"), own)
    return min(found)


def _of_cgroups(root: Path, own: str) -> Iterator[int]:
    """What each of the nested cgroups that has a limit leaves (version 2; the limit of a job is set some levels up).

    Copies of files on disk are counted as used, but given up before anybody is killed: all that are not in use, half of
    those that are, and what the kernel keeps to find them again.
    Source: Linux, Documentation/admin-guide/cgroup-v2.rst; ``si_mem_available`` reckons so for the machine.
    """
    folder = root / own.lstrip("/")
    for level in (folder, *folder.parents):
        if not level.is_relative_to(root):
            return
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            limit, used = (int((level / name).read_text()) for name in ("memory.max", "memory.current"))
            fields = (line.split() for line in (level / "memory.stat").read_text().splitlines())
            of = {name: int(count) for name, count in fields}
            spare = of.get("inactive_file", 0) + of.get("active_file", 0) // 2 + of.get("slab_reclaimable", 0)
            yield max(0, limit - used + min(spare, used))


def _of_machine() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def populate(memory: mmap.mmap, length: int) -> None:
    """Let the kernel provide all pages now, in one call, instead of one by one under the copy. Raises OSError."""
    first = ctypes.c_char.from_buffer(memory)
    failed = _LIBC.madvise(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), _MADV_POPULATE_WRITE)
    number = ctypes.get_errno()
    if failed and number in (errno.ENOMEM, errno.EFAULT):
        raise OSError(number, os.strerror(number))
