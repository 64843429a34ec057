"""Following the kernel's log while a run lasts: what it says of this node is told, and explains ends of processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from closeranks.decide.protocol import Hint
from closeranks.diagnose.kernel_line import LINE_BYTES_MAX, KernelWord, kernel_word
from closeranks.events import NodeUnwell
from closeranks.gather.rulebook import lexicon

AUTO: Final = "auto"
KMSG: Final = Path("/dev/kmsg")
_LOOK_S: Final = 0.5
_PIECE_BYTES: Final = 2**20  # of one look: a flood is caught up with over several
_RECORD_BYTES: Final = 2**13  # a record of the kernel is no longer
_RECORDS_MOST: Final = 1000
_WORDS_KEPT: Final = 256  # by process


class Lines(Protocol):
    """Where lines come from."""

    def new(self) -> Iterator[bytes]:
        """The whole lines since the last time.

        Raises:
            OSError: the log cannot be read.
        """


class FileLines:
    """Lines that are added to a file from now on. It may come into being later, be cut, or be put in place of."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._rest = b""
        if path.exists():
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)

    def new(self) -> Iterator[bytes]:
        """See Lines."""
        self._reopen_if_replaced()
        if self._file is None:
            return
        *lines, rest = (self._rest + os.read(self._file, _PIECE_BYTES)).split(b"\n")
        self._rest = rest[:LINE_BYTES_MAX]
        yield from lines

    def _reopen_if_replaced(self) -> None:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return
        if self._file is not None:
            here = os.fstat(self._file)
            cut = here.st_size < os.lseek(self._file, 0, os.SEEK_CUR)
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino) and not cut:
                return
            gone, self._file = self._file, None  # before anything can fail: its number will be another file's
            os.close(gone)
        self._file, self._rest = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC), b""


class KernelLines:
    """The kernel's own records from now on.

    Source: Linux, Documentation/ABI/testing/dev-kmsg.

    Raises:
        OSError: this user may not read them, or a container has none.
    """

    def __init__(self) -> None:
        self._file = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._file, 0, os.SEEK_END)

    def new(self) -> Iterator[bytes]:
        """See Lines."""
        for _ in range(_RECORDS_MOST):
            try:
                record = os.read(self._file, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # what was not read in time was overwritten
            yield record.partition(b";")[2].partition(b"\n")[0]


def lines_of(where: str) -> Lines:
    """The log that ``--kernel-log`` names.

    Raises:
        OSError: it cannot be read.
    """
    return KernelLines() if where == AUTO else FileLines(Path(where))


class KernelLog:
    """Tells ``on_unwell`` what the kernel says of this node, and what it said of a process."""

    def __init__(self, lines: Lines, on_unwell: Callable[[NodeUnwell], None]) -> None:
        self._lines = lines
        self._on_unwell = on_unwell
        self._told_s: dict[str, float] = {}
        self._by_pid: dict[int, KernelWord] = {}

    async def run(self, ended: asyncio.Event) -> None:
        """Read until the run has ended."""
        while not ended.is_set():
            self.catch_up()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _LOOK_S)

    def catch_up(self) -> None:
        """Take what is there now. A log that cannot be read any more says nothing."""
        with contextlib.suppress(OSError):
            for line in self._lines.new():
                word = kernel_word(line, lexicon())
                if word is not None:
                    self._hear(word)

    def hint(self, pid: int) -> Hint | None:
        """What the kernel said of this process: asked as it ends, when the line is there already."""
        self.catch_up()
        word = self._by_pid.get(pid)
        return None if word is None else Hint(fault=word.fault, confidence=word.weight, words=word.text)

    def _hear(self, word: KernelWord) -> None:
        now_s = time.monotonic()
        if word.pid is not None:
            self._by_pid[word.pid] = word
            while len(self._by_pid) > _WORDS_KEPT:
                del self._by_pid[next(iter(self._by_pid))]
        last_s, self._told_s[word.sign] = self._told_s.get(word.sign), now_s
        if last_s is None or now_s - last_s > word.burst_gap_s:
            self._on_unwell(NodeUnwell(sign=word.sign, detail=word.detail, drain=word.drain))
