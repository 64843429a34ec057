"""What a process said before it died, judged by the engine that judges any log."""

from __future__ import annotations

import signal
from typing import Final

from closeranks.decide.protocol import Crash, Hint
from closeranks.diagnose.last_words import hear
from closeranks.gather.rulebook import lexicon
from closeranks.run.processes import Ended

# Sent from outside, whatever the process said before; the others it brought upon itself.
_FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def hint_of(said: bytes, ended: Ended, crash: Crash | None) -> Hint | None:
    """What the exception, or without one the end of its stderr, says of the cause; None: nothing that is certain."""
    if ended.code == 0 or ended.signal in _FROM_OUTSIDE:
        return None
    words = said if crash is None else f"{crash.error}: {crash.message}\n".encode()
    verdict = hear(words, lexicon())
    if verdict is None:
        return None
    return Hint(fault=verdict.fault, confidence=verdict.confidence, words=verdict.proof[0].text)
