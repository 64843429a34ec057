"""Which files a command line stands for, and what their paths tell: rank, node, kind.

Known layouts: torchrun's ``attempt_0/3/stderr.log``, Slurm's ``slurm-%j_%t.out`` and ``%N``, Ray's
``worker-*.err`` and ``rank3`` anywhere, and runs of ours (``logs/p3.err`` beside a journal).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from closeranks.diagnose.labels import harmless
from closeranks.diagnose.lines import Origin
from closeranks.journal import JOURNAL_NAME

FILES_MAX: Final = 100_000
_RANK: Final = (
    re.compile(r"attempt_\d+/(\d{1,6})/(?:stdout|stderr|error)[^/]*$"),
    re.compile(r"(?:^|[/_.-])(?:global_)?rank[_-]?(\d{1,6})(?=[/_.-]|$)", re.IGNORECASE),
    re.compile(r"slurm-\d+_(\d{1,6})\.(?:out|err|log)"),
    re.compile(r"(?:^|[/_.-])task[_-]?(\d{1,6})(?=[/_.-]|$)"),
)
_NODE: Final = re.compile(r"(?:^|[/_.-])((?:node|host|gpu|ip)-?[\d-]*\d)(?=[/_.-]|$)")
_KERNEL: Final = re.compile(r"(?:^|/)(?:dmesg|kern(?:el)?|messages|syslog)[^/]*$")
_NOT_LOGS: Final = frozenset(
    {
        ".pt",
        ".pth",
        ".safetensors",
        ".bin",
        ".npy",
        ".npz",
        ".parquet",
        ".py",
        ".pyc",
        ".so",
        ".json",
        ".jsonl",
        ".sqlite",
    }
    | {".png", ".html", ".yaml", ".toml", ".csv", ".pickle", ".pkl"}
)


class SourcesError(Exception):
    """The command line names nothing that can be read."""


class LogFile(msgspec.Struct, frozen=True):
    """A file and what is known of it before it is read."""

    path: Path
    origin: Origin
    size_bytes: int


def runs_in(places: Sequence[Path]) -> tuple[Path, ...]:
    """The folders among them that are runs of ours: they hold a journal."""
    return tuple(place for place in places if (place / JOURNAL_NAME).is_file())


def logs_in(places: Sequence[Path], *, kernel: bool = False) -> list[LogFile]:
    """The files, and all that look like logs below the folders, each once, in order of their names.

    Raises:
        SourcesError: a place does not exist, there are too many files, or there is none.
    """
    found: dict[Path, LogFile] = {}
    for place in places:
        for path in _files(place):
            if path not in found:
                found[path] = _described(path, kernel=kernel)
            if len(found) > FILES_MAX:
                raise SourcesError(f"{place}: more than {FILES_MAX} files; name the folder of one job")
    if not found:
        raise SourcesError(
            f"{', '.join(map(str, places))}: no log in it (links, hidden files and names like x.json or x.pt are left "
            "out; name such a file itself)"
        )
    return list(found.values())


def _files(place: Path) -> Iterator[Path]:
    if place.exists() and not place.is_dir():  # a pipe as well, if it was named: <(kubectl logs ...)
        yield place
    elif place.is_dir():
        if not os.access(place, os.R_OK | os.X_OK):
            raise SourcesError(f"{place}: cannot be read: Permission denied")
        # Symbolic links below a folder may lead in circles or elsewhere: only what was named itself is followed.
        yield from sorted(
            path
            for path in place.rglob("*")
            if path.is_file() and not path.is_symlink() and path.suffix not in _NOT_LOGS and not _hidden(path, place)
        )
    else:
        raise SourcesError(f"{place}: no such file or folder")


def _hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _described(path: Path, *, kernel: bool) -> LogFile:
    try:
        status = path.stat()
    except OSError as error:
        raise SourcesError(f"{path}: cannot be read: {error.strerror}") from error
    text = str(path)
    rank = next((int(found[1]) for form in _RANK if (found := form.search(text))), None)
    node = _NODE.search(text)
    origin = Origin(
        file=harmless(text),
        rank=rank,
        node="" if node is None else node[1],
        kernel=kernel or _KERNEL.search(text) is not None,
        year=datetime.fromtimestamp(status.st_mtime, UTC).year,
    )
    return LogFile(path, origin, status.st_size)
