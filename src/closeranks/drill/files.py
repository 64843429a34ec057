"""Disks that fail in a drill: a file layer of the store that begins to fail when a worker's fault strikes.

The worker announces the fault at its moment and leaves its claim; the process that writes the store finds the claim.
So a disk fails at a planned moment of the training without a word between the two processes.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from closeranks.checkpoint.drill_files import TappedFiles
from closeranks.checkpoint.files import Files
from closeranks.drill.fault import (
    ENVIRONMENT,
    IN_SCRIPT,
    INTERMITTENT_STEPS,
    OF_FILES,
    Fault,
    Kind,
    Lasting,
    read_faults,
)
from closeranks.drill.inject import claims_of

_FAILING: Final = {
    Kind.NO_SPACE: (errno.ENOSPC, frozenset({"make", "mkdir", "allocate", "pwrite"})),
    Kind.IO_ERROR: (errno.EIO, frozenset({"pwrite", "fsync"})),
}

T = TypeVar("T")


class Planned(NamedTuple):
    """A fault and the file that says that it has struck."""

    fault: Fault
    claim: Path


def files_of_drill() -> Files | None:
    """The files for a store in this process: None outside drills, and in those that leave disks alone.

    Raises:
        ValueError: CLOSERANKS_DRILL names no readable list of faults.
    """
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return None
    claims = claims_of(Path(path))
    planned = [
        Planned(fault, claims / str(index))
        for index, fault in enumerate(read_faults(Path(path)))
        if fault.kind in OF_FILES and fault.moment not in IN_SCRIPT  # there a call of the script itself fails
    ]
    return DrilledFiles(planned) if planned else None


class DrilledFiles(TappedFiles):
    """Carries every call out until a fault has struck; from then on some fail, or lie.

    A transient fault is one call, an intermittent one every third, a stuck one all of its sort.
    """

    def __init__(self, planned: Sequence[Planned], inner: Files | None = None) -> None:
        super().__init__(inner)
        self._planned = tuple(planned)
        self._seen = [0] * len(self._planned)
        self._lock = threading.Lock()

    def tap(self, call: str, path: Path, do: Callable[[], T]) -> T:
        """Carry the call out, or answer it by the error of the fault that has struck."""
        for place, (fault, _) in enumerate(self._planned):
            number, calls = _FAILING.get(fault.kind, (0, frozenset[str]()))
            if call in calls and self._due(place):
                raise OSError(number, os.strerror(number), str(path))
        return do()

    def pwrite(self, fd: int, data: memoryview, at: int) -> int:
        """See Files. A torn write has written half of the bytes, and says that it wrote all."""
        for place, (fault, _) in enumerate(self._planned):
            if fault.kind is Kind.TORN_WRITE and self._due(place):
                super().pwrite(fd, data[: len(data) // 2], at)
                return len(data)
        return super().pwrite(fd, data, at)

    def _due(self, place: int) -> bool:
        fault, claim = self._planned[place]
        if not claim.exists():
            return False
        with self._lock:
            seen = self._seen[place]
            self._seen[place] += 1
        match fault.lasting:
            case Lasting.TRANSIENT:
                return seen == 0
            case Lasting.INTERMITTENT:
                return seen % INTERMITTENT_STEPS == 0
            case _:
                return True
