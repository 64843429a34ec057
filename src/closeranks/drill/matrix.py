"""The drill matrix: every kind of fault in every phase of a worker's life, and what is right in each cell. Pure.

A cell that is not made says why. What is right is written here once, before anything is measured, and no cell is left
out because it comes out wrong.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from closeranks.drill.expected import Expected, Phase, Row
from closeranks.drill.fault import Fault, Kind, Moment
from closeranks.drill.matrix_rows import ROWS
from closeranks.drill.nodes.faults import NodeFault, NodeKind, NodeMoment
from closeranks.drill.plan import RunSpec

SEATS: Final = 3
STEPS: Final = 40
_FIRST_STEP, _LAST_STEP = 8, 14  # strikes are drawn from these; the rest of the run shows what became of it
_RUN_S: Final = 90.0  # an undisturbed run takes a tenth of it; on a busy machine, half
_STEP_S: Final = 0.05  # what a step of the small job takes at most
_ALWAYS: Final = ("--grace", "3")
_IN_PHASE: Final[Mapping[Phase, tuple[str, ...]]] = {Phase.START_UP: ("--join-timeout", "8")}
_NODES: Final = tuple(f"n{rank}" for rank in range(SEATS))  # those with seats
_BACK_S: Final = 2.0  # a node that was lost before another one comes back so soon

MOMENTS: Final[Mapping[Phase, Moment]] = {
    Phase.START_UP: Moment.START_UP,
    Phase.FORWARD: Moment.FORWARD,
    Phase.COLLECTIVE: Moment.COLLECTIVE,
    Phase.OPTIMIZER: Moment.APPLY,
    Phase.SAVING: Moment.SNAPSHOT,
    Phase.RECOVERING: Moment.RECOVERING,
    Phase.IDLE: Moment.IDLE,
}


class UnknownCellError(ValueError):
    """No such cell; the message names the nearest one."""


class NothingToDrillError(ValueError):
    """The cell is empty, or of the other sort; its ``expected`` says why."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault in one phase."""

    row: Row
    phase: Phase

    @property
    def key(self) -> str:
        """As it is written on the command line: ``kill:forward``."""
        return f"{self.row.name}:{self.phase}"

    @property
    def expected(self) -> Expected | str:
        """What is right, or why there is nothing to drill."""
        return self.row.phases[self.phase]

    @property
    def of_nodes(self) -> bool:
        """Whether it needs several nodes and links that can be cut."""
        return isinstance(self.row.kind, NodeKind)


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """All that is drawn for one cell."""

    run: RunSpec
    faults: tuple[Fault, ...]  # the last one is the cell's; one before it brings about a recovery


class Which(StrEnum):
    """Sets of cells that have a name."""

    ALL = "all"
    QUICK = "quick"


CELLS: Final = tuple(Cell(row=row, phase=phase) for row in ROWS for phase in Phase)
# One cell for each path through detection: an exit, an exception, a standstill, a wrong value, a disk, a control.
_QUICK: Final = ("kill:forward", "exception:optimizer", "no-space:saving", "slow-once:forward")


def chosen(text: str) -> tuple[Cell, ...]:
    """The cells that the words name: ``kill:forward``, ``kill`` (a row), ``:saving`` (a column), ``quick``, ``all``.

    Raises:
        UnknownCellError: a word names none.
    """
    keys: set[str] = set()
    for word in filter(None, (word.strip() for word in text.split(","))):
        found = _named(word)
        if not found:
            known = [*Which, *(row.name for row in ROWS), *(f":{phase}" for phase in Phase), *(c.key for c in CELLS)]
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.0)[0]
            raise UnknownCellError(f"no cell of the matrix is called {word!r}; did you mean {near!r}?")
        keys.update(found)
    return tuple(cell for cell in CELLS if cell.key in keys)


def episode(cell: Cell, seed: int, command: Sequence[str]) -> Episode:
    """The run and the faults of a cell; the same seed draws the same.

    Raises:
        NothingToDrillError: there is nothing to drill in this cell, or it needs several nodes.
    """
    row, kind = cell.row, cell.row.kind
    if isinstance(cell.expected, str) or not isinstance(kind, Kind):
        raise NothingToDrillError(f"{cell.key}: there is nothing to drill in processes: {cell.expected}")
    draw = random.Random(f"{seed}/{cell.key}")  # noqa: S311 - no secret
    step, seat = draw.randint(_FIRST_STEP, _LAST_STEP), draw.randrange(SEATS)
    moment = row.moments.get(cell.phase, MOMENTS[cell.phase])
    fault = Fault(
        kind=kind,
        seat=seat,
        step=step,
        moment=moment,
        for_s=row.for_s,
        depth=draw.uniform(0.2, 0.8),
        lasting=row.lasting,
        bits=max(1, row.bits),
        draw=draw.randrange(2**32),
    )
    return Episode(run=run_of(cell, command), faults=(*_before(fault), fault))


def run_of(cell: Cell, command: Sequence[str]) -> RunSpec:
    """How the cell's run is started."""
    return RunSpec(
        command=tuple(command),
        seats=SEATS,
        spares=1,
        timeout_s=_RUN_S + _STEP_S * cell.row.steps,
        save_every="6",
        options=(*_ALWAYS, *cell.row.options, *_IN_PHASE.get(cell.phase, ())),
    )


def node_faults(cell: Cell, seed: int) -> tuple[NodeFault, ...]:
    """What strikes in a cell of several nodes; the last one is the cell's, one before it brings about a recovery.

    Raises:
        NothingToDrillError: the cell is none of these.
    """
    row = cell.row
    if not isinstance(row.kind, NodeKind):
        raise NothingToDrillError(f"{cell.key}: strikes a process, not a node")
    draw = random.Random(f"{seed}/{cell.key}")  # noqa: S311 - no secret
    step = row.calm_steps + draw.randint(_FIRST_STEP, _LAST_STEP)
    node = draw.choice(_NODES)
    fault = NodeFault(kind=row.kind, node=node, step=step, for_s=row.for_s, percent=row.percent)
    if cell.phase is not Phase.RECOVERING:
        return (fault,)
    other = _NODES[(_NODES.index(node) + 1) % len(_NODES)]
    before = NodeFault(kind=NodeKind.NODE_KILL, node=other, step=step, for_s=_BACK_S)
    return (before, replace(fault, moment=NodeMoment.RECOVERY))


def kinds(cells: Iterable[Cell]) -> int:
    """How many kinds of faults the cells have, controls not counted."""
    return len({cell.row.name for cell in cells if not cell.row.control})


def _before(fault: Fault) -> tuple[Fault, ...]:
    """The loss whose recovery is struck: of another seat, in the step after the one that ``fault`` waits for."""
    if fault.moment is not Moment.RECOVERING:
        return ()
    other = (fault.seat + 1) % SEATS
    return (Fault(kind=Kind.KILL, seat=other, step=fault.step + 1, moment=Moment.BACKWARD, depth=fault.depth),)


def _named(word: str) -> list[str]:
    if word == Which.ALL:
        return [cell.key for cell in CELLS]
    if word == Which.QUICK:
        return list(_QUICK)
    name, mark, phase = word.rpartition(":") if ":" in word else (word, "", "")
    return [cell.key for cell in CELLS if name in ("", cell.row.name) and (not mark or phase in ("", cell.phase))]
