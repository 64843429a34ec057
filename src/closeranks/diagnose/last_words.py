"""The end of what one process said, heard the moment it died: enough to tell exhausted or broken things from bugs."""

from __future__ import annotations

from typing import Final

from closeranks import faults
from closeranks.diagnose.lexicon import Lexicon
from closeranks.diagnose.lines import Origin, judge_pieces
from closeranks.diagnose.verdict import Verdict

CONFIDENCE_MIN: Final = 0.8
# Faults outside of the program, which a restart elsewhere, less load or a person can mend. A bug of the program says
# "assertion" or "division by zero", and for what is done about it that is no more than that an exception ended it.
TELLING: Final = frozenset(
    fault.name
    for fault in (
        faults.OUT_OF_MEMORY,
        faults.DEVICE_OUT_OF_MEMORY,
        faults.OOM_KILL,
        faults.SHARED_MEMORY_FULL,
        faults.DISK_FULL,
        faults.TOO_MANY_FILES,
        faults.SERVICE_UNAVAILABLE,
        faults.STORAGE_ERROR,
        faults.STORAGE_STALLED,
        faults.CORRUPT_FILE,
        faults.DEVICE_MEMORY,
        faults.DEVICE_LOST,
        faults.DEVICE_LINK,
        faults.DEVICE_STUCK,
        faults.NO_DEVICE,
    )
)


def hear(words: bytes, lexicon: Lexicon) -> Verdict | None:
    """The verdict on the last words, if they name something outside of the program; None: they do not."""
    verdict = judge_pieces((words,), lexicon, Origin(file="last words"))
    return verdict if verdict.fault in TELLING and verdict.confidence >= CONFIDENCE_MIN else None
