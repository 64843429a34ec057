"""The append-only record of a run: one line of JSON per record; append, read, follow.

A line is written by one ``write(2)`` to a descriptor opened with O_APPEND. A crash can therefore leave at most one
torn line, at the end. Nothing in here is fatal to a reader: a torn end and damaged lines are values it gets.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import msgspec

from closeranks.events import AnyEvent, Decided, Event, Record, RestorePlanned, RunEnded, RunStarted, Stamp, TermBegan

JOURNAL_NAME: Final = "journal.jsonl"
MAX_LINE_BYTES: Final = 2**20
MAX_TEXT_CHARS: Final = 32 * 2**10  # longer texts lose their middle
POLL_S: Final = 0.05
_SHOWN_BYTES: Final = 200  # of a damaged line, in its report
_LASTING = (RunStarted, TermBegan, Decided, RestorePlanned, RunEnded)  # on disk before anything depends on them

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class JournalError(Exception):
    """A record could not be written; the message says what was left behind."""

    record: Record | None = None  # where the disk did not take it


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A line that is no record. It was skipped."""

    line: int  # 1..
    problem: str
    start: bytes  # of the line, cut


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal holds."""

    records: tuple[Record, ...]
    torn: bytes | None  # an unfinished last line; its record was never acknowledged to anyone
    damaged: tuple[Damage, ...]


class Journal:
    """The writer. One per run: a second writer at the same time would repeat sequence numbers."""

    def __init__(self, fd: int, path: Path, *, run: str, node: str, next_seq: int) -> None:
        self.path = path
        self._fd = fd
        self._run = run
        self._node = node
        self._next_seq = next_seq
        self._size_bytes = os.fstat(fd).st_size
        self._torn_at: int | None = None  # offset of a partial line that could not be taken back yet

    @classmethod
    def create(cls, path: Path, run: str, node: str) -> Self:
        """Open ``path`` for appending, mode 0600; an existing journal is continued behind its last record.

        A torn last line is completed if only its newline is missing, and cut off otherwise.

        Raises:
            JournalError: the file cannot be opened, mended or made to last; what it held is still there.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise JournalError(f"{path}: cannot be opened for appending: {error.strerror}") from error
        try:
            next_seq = _mend(fd, path)
            _fsync_folder(path.parent)
        except OSError as error:
            os.close(fd)
            raise JournalError(f"{path}: cannot be continued: {error.strerror}; it was left as it is") from error
        return cls(fd, path, run=run, node=node, next_seq=next_seq)

    def append(self, event: AnyEvent, term: int, stamp: Stamp | None = None) -> Record:
        """Write one record. Decisions, terms and the ends of a run are on disk when this returns.

        ``stamp``: of the coordinator that has every node of the job write this event.

        Raises:
            JournalError: the record is not in the journal (or, if the message says so, may not last); the
                journal is whole and the next append can succeed.
        """
        record = Record(
            seq=self._next_seq,
            wall_s=time.time(),
            mono_s=time.monotonic(),
            run=self._run,
            node=self._node,
            term=term,
            event=_tidy(event),
            stamp=stamp,
        )
        line = _line(record)
        try:
            self._write(line)
            self._next_seq += 1
            if isinstance(event, _LASTING):
                self._flush(record)
        except JournalError as error:
            error.record = record
            raise
        return record

    def close(self) -> None:
        """Close the file. Nothing can be appended afterwards."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        try:
            if self._torn_at is not None:
                self._take_back(self._torn_at)
        except OSError as error:
            raise JournalError(f"{self.path}: a torn line cannot be taken back: {error.strerror}") from error
        rest = memoryview(line)
        try:
            while rest:  # a short write is completed: on a full disk the second write gives the reason
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            left = self._left_behind(self._size_bytes, len(line) - len(rest))
            raise JournalError(f"{self.path}: record {self._next_seq} not written: {error.strerror}; {left}") from error
        self._size_bytes += len(line)

    def _left_behind(self, start: int, written_bytes: int) -> str:
        if not written_bytes:
            return "the journal ends with the record before it"
        try:
            self._take_back(start)
        except OSError:
            self._torn_at = start
            return "the journal ends in a torn line, which the next append takes back"
        return "the journal ends with the record before it"

    def _take_back(self, start: int) -> None:
        os.ftruncate(self._fd, start)
        self._torn_at = None

    def _flush(self, record: Record) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise JournalError(
                f"{self.path}: record {record.seq} is written, but may not survive a power loss: {error.strerror}"
            ) from error


def read(path: Path) -> Reading:
    """All records of a journal, whatever happened to the file.

    Raises:
        OSError: the file cannot be read.
    """
    *lines, last = path.read_bytes().split(b"\n")
    records: list[Record] = []
    damaged: list[Damage] = []
    for number, line in enumerate(lines, start=1):
        found = _parse(line, number)
        if isinstance(found, Record):
            records.append(found)
        else:
            damaged.append(found)
    torn = None
    if last:
        # Only the newline may be missing: then the record is whole, and counts.
        found = _parse(last, len(lines) + 1)
        if isinstance(found, Record):
            records.append(found)
        else:
            torn = last
    return Reading(records=tuple(records), torn=torn, damaged=tuple(damaged))


def follow(path: Path, stop: threading.Event, on_damage: Callable[[Damage], None] | None = None) -> Iterator[Record]:
    """Records as they are written, from the first one on; waits for the file to appear.

    Ends when ``stop`` is set and everything that was complete by then has been given out.
    """
    offset, number = 0, 0
    while True:
        stopping = stop.is_set()  # looked at before reading: nothing written before it was set is missed
        block = _complete_lines(path, offset)
        offset += len(block)
        for line in block.split(b"\n")[:-1]:
            number += 1
            found = _parse(line, number)
            if isinstance(found, Record):
                yield found
            elif on_damage is not None:
                on_damage(found)
        if stopping:
            return
        if not block:
            stop.wait(POLL_S)


def _complete_lines(path: Path, offset: int) -> bytes:
    """What lies behind ``offset``, up to the last newline.

    A partial line is read again the next time rather than kept: its writer may take it back and write another.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            block = file.read()
    except FileNotFoundError:
        return b""
    return block[: block.rfind(b"\n") + 1]


def _parse(line: bytes, number: int) -> Record | Damage:
    problem = f"{len(line)} bytes, at most {MAX_LINE_BYTES} are a record"
    if len(line) <= MAX_LINE_BYTES:
        try:
            return _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = str(error)
    return Damage(line=number, problem=problem, start=line[:_SHOWN_BYTES])


def _line(record: Record) -> bytes:
    line = _encoder.encode(record)
    kind = type(record.event).__name__
    if len(line) >= MAX_LINE_BYTES:
        raise JournalError(f"{kind} of {len(line)} bytes, at most {MAX_LINE_BYTES} fit a line; nothing was written")
    try:
        _decoder.decode(line)  # a value that JSON cannot hold, such as an infinite time, must not be found out later
    except msgspec.ValidationError as error:
        raise JournalError(f"{kind} could not be read back: {error}; nothing was written") from error
    return line + b"\n"


def _tidy(event: AnyEvent) -> AnyEvent:
    """The event with texts that fit and can be encoded: tracebacks and messages are the user's."""
    changes = {}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if isinstance(value, str):
            tidy: object = _tidy_text(value)
        elif isinstance(value, tuple):
            tidy = tuple(_tidy_text(item) if isinstance(item, str) else item for item in value)
        elif isinstance(value, dict):
            tidy = {key: _tidy_text(item) if isinstance(item, str) else item for key, item in value.items()}
        else:
            continue
        if tidy != value:
            changes[name] = tidy
    return _replaced(event, changes) if changes else event


def _replaced(event: Event, changes: dict[str, object]) -> AnyEvent:
    changed: AnyEvent = msgspec.structs.replace(event, **changes)  # type: ignore[assignment]
    return changed


def _tidy_text(text: str) -> str:
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates, from undecodable output
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _mend(fd: int, path: Path) -> int:
    """Put the end of an existing journal in order; the next sequence number."""
    reading = read(path)
    if reading.torn is not None:
        os.ftruncate(fd, os.fstat(fd).st_size - len(reading.torn))
    elif reading.records and not _ends_in_newline(fd):
        os.write(fd, b"\n")
    return max((record.seq for record in reading.records), default=-1) + 1


def _ends_in_newline(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size == 0 or os.pread(fd, 1, size - 1) == b"\n"


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
