"""One virtual run with its journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from closeranks.events import Record
from closeranks.simulate.book import Outcome
from closeranks.simulate.setup import Setup
from closeranks.simulate.strikes import Strike
from closeranks.simulate.tape import Tape
from closeranks.simulate.world import World


def recorded(
    setup: Setup, strikes: Sequence[Strike], write: Callable[[bytes], object], *, name: str, version: str
) -> Outcome:
    """Run it and write its journal, line by line: the same bytes for the same setup, faults, name and version."""
    tape = Tape(write, run=name, command=("closeranks", "simulate"), version=version)
    return World(setup, strikes, tape).run()


def records_of(setup: Setup, strikes: Sequence[Strike]) -> tuple[Outcome, list[Record]]:
    """Run it; its outcome and the records of its journal."""
    lines: list[bytes] = []
    outcome = recorded(setup, strikes, lines.append, name="virtual", version="0")
    return outcome, [msgspec.json.decode(line, type=Record) for line in lines]
