"""Exhausted memory: batches are split finer where the script allows it, so that the same step needs less at once."""

from __future__ import annotations

from msgspec.structs import replace

from closeranks import faults
from closeranks.decide.diagnosis import Trouble
from closeranks.decide.turn import Turn
from closeranks.events import BatchesSplitFiner

_FINER_MOST = 4096
EXHAUSTED = {fault.name: fault for fault in (faults.OUT_OF_MEMORY, faults.DEVICE_OUT_OF_MEMORY)}


def can_split(turn: Turn, finer: int) -> None:
    """A process splits its batches as it is told, so many times finer at most; the least that any can holds."""
    known, bound = turn.state.finer_most, min(finer, _FINER_MOST)
    turn.update(finer_most=bound if known == 1 else min(known, max(1, bound)))


def advised(hopeless: str, fault: str) -> str:
    """Why nothing can be done, with what a person can do where memory is what is missing."""
    return f"{hopeless}; {EXHAUSTED[fault].advice}" if hopeless and fault in EXHAUSTED else hopeless


def relieve(turn: Turn, trouble: Trouble, fault: str) -> bool:
    """Split batches twice as fine, if memory was exhausted and they can be; whether that was done.

    All seats are told with the next term. Several that fail alike under one term are one failure.
    """
    state, incident = turn.state, turn.incident()
    if fault not in EXHAUSTED or trouble.crash is None:
        return False
    if incident.finer_since == state.group.term:
        return True
    if 2 * state.finer > state.finer_most:
        return False
    turn.update(finer=2 * state.finer, incident=replace(incident, finer_since=state.group.term))
    turn.note(BatchesSplitFiner(incident=incident.number, finer=turn.state.finer))
    return True
