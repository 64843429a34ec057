"""The Linux calls that Python does not wrap: parent-death signal and subreaper."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OPEN_FILES = 65_536  # a worker takes up to 23 while it is started


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")


def become_subreaper() -> None:
    """From now on orphans among our descendants become our children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, sig: signal.Signals) -> bool:
    """Ask for ``sig`` when the parent ends; False when ``parent_pid`` is our parent no more.

    The signal is bound to the *thread* that is our parent, and a parent that ended before the call sends nothing:
    hence the check afterwards.
    """
    _prctl(_PR_SET_PDEATHSIG, sig)
    return os.getppid() == parent_pid


def allow_open_files() -> int:
    """Let this process have as many open files as a node with many workers needs.

    Returns:
        Its soft limit as it was, for what it starts in the user's name; 0 where nothing was changed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return soft
    return 0


def limit_open_files(soft: int) -> None:
    """Set this process's soft limit. A larger one is not for every program: some look at each possible descriptor."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def count_threads() -> int:
    """Threads of this process, those of C libraries included."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())
