"""Reads all sources of one question into evidence, and remembers what could not be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from closeranks.diagnose.evidence import Evidence
from closeranks.diagnose.flight import compare
from closeranks.diagnose.lines import Gathering, Scanner
from closeranks.gather.dumps import read_recordings
from closeranks.gather.reading import ReadingError, looks_like_text, pieces
from closeranks.gather.rulebook import lexicon
from closeranks.gather.sources import LogFile

_HEAD_BYTES: Final = 2**16


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, what was read, and what was not."""

    evidence: tuple[Evidence, ...]
    files: int
    read_bytes: int
    kernel_read: bool
    ranks: frozenset[int]  # whose logs were read
    recordings: int
    long_lines: int  # that were cut
    problems: tuple[str, ...]


class Collector:
    """Scans files one after another; ``advance`` hears how many stored bytes were read."""

    def __init__(self, advance: Callable[[int], None] = lambda _: None) -> None:
        self._gathering = Gathering(lexicon())
        self._advance = advance
        self._others: list[Evidence] = []
        self._problems: list[str] = []
        self._files = self._read_bytes = self._recordings = 0
        self._kernel_read = False
        self._ranks: set[int] = set()

    def scan(self, logs: Sequence[LogFile]) -> None:
        """Read logs; one that cannot be read is a problem, not an end."""
        for log in logs:
            self._files += 1
            scanner = Scanner(self._gathering, log.origin, self._files)
            self._kernel_read = self._kernel_read or log.origin.kernel
            if log.origin.rank is not None:
                self._ranks.add(log.origin.rank)
            stored_bytes = 0
            try:
                for piece in pieces(log.path):
                    if not stored_bytes and not looks_like_text(piece.data[:_HEAD_BYTES]):
                        self._problems.append(f"{log.path}: does not look like text: no log, or packed in another way")
                    scanner.feed(piece.data)
                    self._read_bytes += len(piece.data)
                    self._advance(piece.stored_bytes - stored_bytes)
                    stored_bytes = piece.stored_bytes
            except ReadingError as error:
                self._problems.append(str(error))
            scanner.close()

    def compare_recordings(self, folder: Path) -> None:
        """Read a folder of recordings of collectives.

        Raises:
            OSError: it cannot be read.
        """
        recordings, problems = read_recordings(folder)
        if not recordings and not problems:
            problems = [f"{folder}: no recording of collectives in it"]
        self._recordings += len(recordings)
        self._problems += problems
        self._others += compare(recordings)

    def add(self, evidence: Sequence[Evidence], problems: Sequence[str] = ()) -> None:
        """Take in what another reader found."""
        self._others += evidence
        self._problems += problems

    def collected(self) -> Collected:
        """All of it."""
        cut = self._gathering.cut
        more = [f"{cut.kinds} sightings of too many kinds were left out"] if cut.kinds else []
        return Collected(
            evidence=(*self._gathering.evidence(), *self._others),
            files=self._files,
            read_bytes=self._read_bytes,
            kernel_read=self._kernel_read,
            ranks=frozenset(self._ranks),
            recordings=self._recordings,
            long_lines=cut.long_lines,
            problems=(*self._problems, *more),
        )
