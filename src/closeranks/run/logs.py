"""What workers print: kept whole in a file, shown on the console line by line under the seat's name.

The output of a process is data from a stranger. It may be binary, endless without a line break, or full of escape
sequences; the file keeps it as it is, the console gets bounded lines without control characters.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from closeranks.log_file import close_log

LINE_CHARS_MAX = 2000
TAIL_BYTES = 32 * 2**10  # enough for what a process says before it dies
_READ_BYTES = 2**16
_READS_MAX = 16  # per wake-up, so that one loud worker does not keep the loop from the others
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean(text: str) -> str:
    """One line without what could move the cursor, change the terminal or hide text."""
    plain = _ESCAPE.sub("", text.rstrip("\r"))
    shown = plain.rpartition("\r")[2]  # a progress bar overwrites its line: its last state is what a person would see
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", shown)


class LineCutter:
    """Cuts bytes into console lines of bounded length."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes."""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        if len(self._rest) > LINE_CHARS_MAX:
            lines.append(self._rest)
            self._rest = ""
        return [_bounded(clean(line)) for line in lines]

    def flush(self) -> list[str]:
        """The line that is not ended yet, if there is one."""
        rest, self._rest = self._rest, ""
        return [_bounded(clean(rest))] if rest else []


def _bounded(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]} ... ({len(line)} characters, see the log)"


class Output:
    """One stream of one process: from its pipe into a file and, line by line, to ``show``.

    ``tail_bytes``: so much of its end is kept in memory, whatever becomes of the file.
    """

    def __init__(self, fd: int, path: Path, show: Callable[[str], None], tail_bytes: int = 0) -> None:
        self._fd = fd
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._show = show
        self._cutter = LineCutter()
        self._tail, self._tail_bytes = bytearray(), tail_bytes
        self._open = True
        self.heard_mono_s: float | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._read)

    @property
    def tail(self) -> bytes:
        """The end of what was said."""
        self._cut_tail()
        return bytes(self._tail)

    def flush_partial(self) -> None:
        """Show a prompt or a progress bar that has no line break yet."""
        for line in self._cutter.flush():
            self._show(line)

    def drain(self) -> None:
        """Take what is in the pipe by now."""
        self._read()

    def close(self) -> None:
        """Take what is left in the pipe, show it, close the file. The pipe is its owner's to close."""
        if self._file is None:
            return
        self._read()
        self._stop()
        self.flush_partial()
        self._cut_tail()
        fd, self._file = self._file, None
        close_log(fd)

    def _cut_tail(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_bytes)]

    def _stop(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)

    def _read(self) -> None:
        for _ in range(_READS_MAX):
            if not self._open:
                return
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._stop()
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        self.heard_mono_s = self._loop.time()
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk must not end a training run
                os.write(self._file, data)
        if self._tail_bytes:
            self._tail += data
        if len(self._tail) > 2 * self._tail_bytes:
            self._cut_tail()
        for line in self._cutter.feed(data):
            self._show(line)
