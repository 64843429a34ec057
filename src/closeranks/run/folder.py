"""The folder of a run: claimed once, never overwritten.

::

    RUN_DIR/
      run.json        what was asked for, versions, outcome
      journal.jsonl   everything seen, decided and done
      logs/           stdout and stderr of each process
      stacks/         stacks of stuck processes
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path

import msgspec

from closeranks.run.options import RunOptions

_FREE_BYTES_MIN = 16 * 2**20  # journal and logs of a short run
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700
_OTHER = "choose another --run-dir"


class FolderError(Exception):
    """The run folder cannot be used; nothing was started and nothing in it was changed."""


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``run.json``."""

    run: str
    command: tuple[str, ...]
    options: RunOptions
    versions: dict[str, str] = {}
    outcome: str = "running"
    exit_code: int | None = None
    reason: str = ""


def default_folder(name: str) -> Path:
    """``runs/<name>-<4 hex>`` below the working directory."""
    return Path("runs") / f"{name}-{secrets.token_hex(2)}"


def claim(folder: Path, options: RunOptions, command: tuple[str, ...]) -> Path:
    """Make the run folder ours and write ``run.json``.

    Raises:
        FolderError: it holds a run or other files, or cannot be written.
    """
    folder = folder.absolute()
    try:
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        _require_empty(folder)
        # Exclusive creation decides between two runs that claim one folder at the same time.
        ours = os.open(folder / "run.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
    except FileExistsError as error:
        raise FolderError(f"run folder {folder}: claimed by another run, or no folder; {_OTHER}") from error
    except OSError as error:
        raise FolderError(f"run folder {folder}: {error.strerror}; {_OTHER}") from error
    try:
        _furnish(folder, ours, RunFile(run=options.run_id or folder.name, command=command, options=options))
    except OSError as error:
        release(folder)  # else every later start would be told that it holds a run
        raise FolderError(f"run folder {folder}: {error.strerror}; {_OTHER}") from error
    return folder


def _furnish(folder: Path, run_file: int, content: RunFile) -> None:
    with os.fdopen(run_file, "wb") as out:
        out.write(_encode(content))
    for name in ("logs", "stacks"):
        (folder / name).mkdir(mode=_PRIVATE_FOLDER)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < _FREE_BYTES_MIN:
        raise OSError(errno.ENOSPC, f"{free_bytes} bytes free, at least {_FREE_BYTES_MIN} are needed")


def release(folder: Path) -> None:
    """Give back a claimed folder in which nothing has run."""
    shutil.rmtree(folder, ignore_errors=True)


def read_run_file(folder: Path) -> RunFile:
    """What ``claim`` wrote, with later changes."""
    return msgspec.json.decode((folder / "run.json").read_bytes(), type=RunFile)


def write_run_file(folder: Path, file: RunFile) -> None:
    """Replace ``run.json`` as a whole: a reader sees the old or the new one."""
    pending = folder / ".run.json"
    with os.fdopen(os.open(pending, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_FILE), "wb") as out:
        out.write(_encode(file))
    pending.replace(folder / "run.json")


def _require_empty(folder: Path) -> None:
    names = sorted(entry.name for entry in folder.iterdir())
    if "run.json" in names or "journal.jsonl" in names:
        raise FolderError(f"run folder {folder}: holds a run already and is never overwritten; {_OTHER}")
    if names:
        raise FolderError(f"run folder {folder}: expected an empty folder, found {names[0]!r}; {_OTHER}")


def _encode(file: RunFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
