"""Words to the person at the console that may find nobody: on a full disk, or a terminal that is gone."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO


def place_of(error: BaseException) -> str:
    """Where it was raised, as `` (file.py:12)``; "" when it never was."""
    places = [f" ({Path(frame.filename).name}:{frame.lineno})" for frame in traceback.extract_tb(error.__traceback__)]
    return "".join(places[-1:])


def tell(line: str, stream: TextIO) -> None:
    """Print a line; that it cannot be written ends nothing."""
    with contextlib.suppress(OSError, ValueError):
        stream.write(f"{line}\n")
        stream.flush()


def drop_untold() -> None:
    """Before the interpreter ends: it would make an exit code of its own (120) of what cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
