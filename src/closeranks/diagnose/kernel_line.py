"""One line of the kernel's log, as it comes: what it says of this node, and of which process."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from closeranks.diagnose import labels
from closeranks.diagnose.evidence import Source, Standing
from closeranks.diagnose.lexicon import Lexicon
from closeranks.faults import Persistence, Scope, fault_named

LINE_BYTES_MAX: Final = 2**11
_YEAR: Final = 1970  # of stamps without one: nothing here depends on it
_PID: Final = re.compile(r"\bpid='?(\d{1,9})\b|\bKill(?:ed)? process (\d{1,9})\b")
_BAD_PLACES: Final = frozenset({Scope.NODE, Scope.DEVICE, Scope.LINK})


class KernelWord(msgspec.Struct, frozen=True, kw_only=True):
    """What a line says."""

    sign: str  # what it is about, e.g. ``Xid 95 of 0000:5e:00``: equal for lines that say the same again
    detail: str  # what to do, and the line itself
    text: str  # the line, cleaned and bounded
    fault: str  # a name of the catalogue
    weight: float
    pid: int | None  # the process that it names
    drain: bool  # the node should get no new work
    burst_gap_s: float  # the same sooner than that is no news


def kernel_word(line: bytes, lexicon: Lexicon) -> KernelWord | None:
    """What the line says of a fault; None: nothing that the rules or the code table know as one."""
    line = line[:LINE_BYTES_MAX]
    numbers = sorted(set().union(*(found for _, found in lexicon.candidates(line))))
    said = labels.read(labels.plain(line), _YEAR)
    found = lexicon.understand(said, "", numbers) if numbers else None
    if found is None or found.source is not Source.KERNEL or not found.fault or found.standing is Standing.CONTEXT:
        return None
    fault = fault_named(found.fault)
    told = _PID.search(said.text)
    place = f" of {found.unit.device}" if found.unit.device else ""
    advice = found.advice or fault.advice
    return KernelWord(
        sign=f"kernel log: {found.rule}{place}",
        detail=f"{found.fault}: {advice} ({found.text})",
        text=found.text,
        fault=found.fault,
        weight=found.weight,
        pid=None if told is None else int(told[1] or told[2]),
        # A program can bring about what stands no nearer than its own errors.
        drain=found.standing is Standing.DEVICE
        and fault.persistence is Persistence.PERMANENT
        and fault.scope in _BAD_PLACES,
        burst_gap_s=lexicon.burst_gap_s(found),
    )
