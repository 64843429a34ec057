"""Recordings of collectives from files: JSON, or pickles of nothing but plain values."""

from __future__ import annotations

import io
import json
import pickle  # only through an unpickler that refuses every name
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Never

from closeranks.diagnose.flight import Recording, RecordingError, parse
from closeranks.diagnose.labels import harmless

DUMP_BYTES_MAX: Final = 2**29
_NUMBERS: Final = re.compile(r"\d{1,6}")
_RANK: Final = re.compile(r"rank[_-]?(\d{1,6})", re.IGNORECASE)


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and text need no name of a class; whatever asks for one could run code."""

    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"asks for {module}.{name}; a recording holds nothing but plain values")

    def persistent_load(self, pid: Any) -> Never:
        raise pickle.UnpicklingError(f"asks for an object outside of the file ({pid!r:.40})")


def read_recordings(folder: Path) -> tuple[list[Recording], list[str]]:
    """All recordings in the folder, by rank, and what is wrong with the other files there.

    Raises:
        OSError: the folder cannot be read.
    """
    found: list[Recording] = []
    problems: list[str] = []
    paths = [folder] if folder.is_file() else sorted(path for path in folder.iterdir() if path.is_file())
    for number, path in enumerate(paths):
        try:
            found.append(parse(_load(path), _rank_of(path, number), harmless(path.name)))
        except RecordingError as error:
            problems.append(f"{harmless(str(path))}: {error}")
    return found, problems


def _load(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > DUMP_BYTES_MAX:
            raise RecordingError(f"larger than {DUMP_BYTES_MAX} bytes, as no recording is")
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"cannot be read: {error.strerror}") from error
    try:
        loaded = json.loads(data) if data.lstrip()[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except RecursionError as error:
        raise RecordingError("nested more deeply than any recording") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise RecordingError(f"neither JSON nor a pickle of plain values: {harmless(str(error))[:200]}") from error
    if not isinstance(loaded, dict):
        raise RecordingError(f"expected a table, got {type(loaded).__name__}")
    return loaded


def _rank_of(path: Path, number: int) -> int:
    """By its name, however odd: ``nccl_trace_rank_3``, ``trace-3.json``, ``3``; else by its place among the others."""
    named = _RANK.search(path.name)
    if named is not None:
        return int(named[1])
    numbers = _NUMBERS.findall(path.stem)
    return int(numbers[-1]) if numbers else number
