"""Operation timings compared across processes: in which operation the slow ones spend what the others do not.

Whoever has not timed an operation is left out of its comparison, and of no other.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

# What the library times by itself, under names of their own beside those of the script.
FETCHING: Final = "data (library)"  # the next share of cr.Batches
UPDATING: Final = "update (library)"  # from the optimizer's first write to the end of the step: no batch in it
COLLECTING: Final = "garbage collection"  # of Python

_DATA: Final = ("data", "load", "batch", "fetch", "input", "augment", "tokeni")
_GARBAGE: Final = ("garbage", "gc")


class Operation(StrEnum):
    """What a timed operation is about, as far as its name says."""

    DATA = "data loading"
    GARBAGE = "garbage collection"
    UPDATE = "update"
    OTHER = "other"


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """One operation, in seconds a step."""

    name: str
    slow_s: float  # median of the slow processes
    others_s: float  # median of the others

    @property
    def more_s(self) -> float:
        """What the slow ones spend more."""
        return self.slow_s - self.others_s


def operation_of(name: str) -> Operation:
    """What the operation is about. A name that says nothing is OTHER."""
    lower = name.lower()
    if name == UPDATING:
        return Operation.UPDATE
    if lower.startswith(_GARBAGE):
        return Operation.GARBAGE
    return Operation.DATA if any(word in lower for word in _DATA) else Operation.OTHER


def compare(sections_s: Mapping[int, Mapping[str, float]], slow: Collection[int]) -> tuple[Excess, ...]:
    """Every operation that slow processes and others have both timed; the one with most excess first.

    ``sections_s``: seconds a step, by process and operation.
    """
    names = {name for sections in sections_s.values() for name in sections}
    found = []
    for name in names:
        timed = {proc: sections[name] for proc, sections in sections_s.items() if name in sections}
        slow_s = [s for proc, s in timed.items() if proc in slow]
        others_s = [s for proc, s in timed.items() if proc not in slow]
        if slow_s and others_s:
            found.append(Excess(name=name, slow_s=statistics.median(slow_s), others_s=statistics.median(others_s)))
    return tuple(sorted(found, key=lambda excess: (-excess.more_s, excess.name)))


def typical(samples: Sequence[Mapping[int, Mapping[str, float]]]) -> dict[int, dict[str, float]]:
    """The median of several windows, by process and operation; each may be missing in any of them."""
    gathered: dict[int, dict[str, list[float]]] = {}
    for sample in samples:
        for proc, sections in sample.items():
            for name, seconds in sections.items():
                gathered.setdefault(proc, {}).setdefault(name, []).append(seconds)
    return {
        proc: {name: statistics.median(seconds) for name, seconds in sections.items()}
        for proc, sections in gathered.items()
    }
