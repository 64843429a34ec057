"""The journals that folders on a command line stand for: a run's, or those of all nodes of one job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from closeranks.journal import JOURNAL_NAME, Reading, read
from closeranks.observe.merge import NodeJournal

_DEPTH = 3  # folders below the one that was named


class JournalsError(Exception):
    """The command line names no run, or more than one."""


def journals_of(places: Sequence[Path]) -> tuple[Path, ...]:
    """The journal of each folder, or the journals below the only one.

    Raises:
        JournalsError: a folder is absent, holds no journal, or journals of several runs.
    """
    found = [journal for place in places for journal in _journals_at(place)]
    return tuple(dict.fromkeys(found))


def read_journals(paths: Sequence[Path]) -> list[NodeJournal]:
    """What they hold. One that cannot be read is a value with its problem where there are others.

    Raises:
        JournalsError: the only one cannot be read.
    """
    return [_read(path, alone=len(paths) == 1) for path in paths]


def problems_of(reading: Reading) -> list[str]:
    """What is wrong with the journal itself, in words."""
    problems = [f"line {damage.line} is damaged and was skipped: {damage.problem}" for damage in reading.damaged]
    if reading.torn is not None:
        problems.append(f"the last line is torn ({len(reading.torn)} bytes) and was left out")
    return problems


def _read(path: Path, *, alone: bool) -> NodeJournal:
    try:
        reading = read(path)
    except OSError as error:
        if alone:
            raise JournalsError(f"{path}: cannot be read: {error.strerror}") from error
        return NodeJournal(source=str(path), records=(), problems=(f"cannot be read: {error.strerror}",))
    return NodeJournal(source=str(path), records=reading.records, problems=tuple(problems_of(reading)))


def _journals_at(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise JournalsError(
            f"{place}: no such folder; give the folder of a run, such as runs/20260101T120000-a1b2, or of all its nodes"
        )
    journal = place / JOURNAL_NAME
    if journal.is_file():
        return [journal]
    below = sorted(_below(place))
    if not below:
        raise JournalsError(f"{place}: no {JOURNAL_NAME} in it or below it, so it is not the folder of a run")
    return below


def _below(place: Path) -> Iterable[Path]:
    for depth in range(1, _DEPTH + 1):
        yield from place.glob(f"{'*/' * depth}{JOURNAL_NAME}")
