"""Preflight over all nodes: versions and scripts of all seats are compared once all of a group have joined. Pure."""

from __future__ import annotations

from typing import NamedTuple

from closeranks.events import PreflightDone
from closeranks.nodes.words import SeatFacts
from closeranks.run.preflight import compare


class Compared(NamedTuple):
    """What the comparison gave; ``fatal``: why the seats cannot train together, "" if they can."""

    event: PreflightDone
    fatal: str


class Agreement:
    """Collects what the processes of a group said of themselves."""

    def __init__(self) -> None:
        self._procs: frozenset[int] = frozenset()
        self._facts: dict[int, dict[str, str]] = {}  # by seat

    def begin(self, procs: tuple[int, ...]) -> None:
        """A group is started; ``procs[seat]``."""
        self._procs, self._facts = frozenset(procs), {}

    def take(self, word: SeatFacts) -> Compared | None:
        """One process joined; the comparison, when it was the last of its group."""
        if word.seat is None or word.proc not in self._procs:
            return None
        self._facts[word.seat] = word.facts
        if len(self._facts) < len(self._procs):
            return None
        self._procs = frozenset()
        findings = compare(self._facts)
        event = PreflightDone(findings=tuple(finding.text for finding in findings))
        return Compared(event, "; ".join(finding.text for finding in findings if finding.fatal))
