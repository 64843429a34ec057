"""What a process said before it died, read from its log and judged by the engine that judges any log."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from closeranks.decide.protocol import Crash, Hint
from closeranks.diagnose.last_words import hear
from closeranks.gather.rulebook import lexicon
from closeranks.run.processes import Ended

_TAIL_BYTES: Final = 32 * 2**10
# Sent from outside, whatever the process said before; the others it brought upon itself.
_FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def hint_of(log: Path, ended: Ended, crash: Crash | None) -> Hint | None:
    """What the exception, or without one the end of the log, says of the cause; None: nothing that is certain."""
    if ended.code == 0 or ended.signal in _FROM_OUTSIDE:
        return None
    words = _tail(log) if crash is None else f"{crash.error}: {crash.message}\n".encode()
    verdict = hear(words, lexicon())
    if verdict is None:
        return None
    return Hint(fault=verdict.fault, confidence=verdict.confidence, words=verdict.proof[0].text)


def _tail(log: Path) -> bytes:
    """The end of the log; empty when it cannot be read: a hint is welcome and never needed."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
