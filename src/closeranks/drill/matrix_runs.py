"""Makes the cells of the drill matrix: runs of processes, and runs of nodes where links can be cut."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from closeranks.drill.matrix import SEATS, STEPS, Cell, episode, node_faults
from closeranks.drill.matrix_report import CellResult, drilled, empty
from closeranks.drill.nodes.campaign import Nodes
from closeranks.drill.nodes.faults import NodeFault
from closeranks.drill.nodes.namespaces import why_not
from closeranks.drill.nodes.runs import NodesSpec
from closeranks.drill.nodes.verdict import NodesEvidence, completed
from closeranks.drill.runner import Runner
from closeranks.drill.score import Struck, score
from closeranks.drill.verdict import Evidence
from closeranks.events import FaultInjected, Record, StepClosed, TermBegan

SMALL_JOB: Final = Path(__file__).parents[1] / "train" / "small_job.py"
_NODES_S: Final = 90.0


class MatrixRuns:
    """Makes cells one after the other below ``folder``.

    ``command``: what is trained; without one a small job, which makes as many steps as a cell needs.
    """

    def __init__(self, runner: Runner, folder: Path, seed: int, command: Sequence[str] = ()) -> None:
        self._runner = runner
        self._folder = folder
        self._seed = seed
        self._command = tuple(command)
        self._nodes: dict[NodesSpec, Nodes] = {}
        self._last: Runner | Nodes = runner

    def make(self, cell: Cell, replay: str) -> CellResult:
        """Drill one cell. ``replay``: the command that does it again."""
        expected = cell.expected
        why = expected if isinstance(expected, str) else _not_here(cell)
        if why or isinstance(expected, str):
            return empty(cell, why)
        began_s = time.monotonic()
        make = self._of_nodes if cell.of_nodes else self._of_processes
        struck, undisturbed, broken = make(cell)
        found = score(expected, struck, undisturbed, broken)
        return drilled(cell, found, seed=self._seed, replay=replay, took_s=time.monotonic() - began_s)

    def discard_drilled(self) -> None:
        """Remove what the last cell that was made left on the disk."""
        self._last.discard_drilled()

    def _of_processes(self, cell: Cell) -> tuple[Struck, Evidence, Evidence]:
        self._last = self._runner
        drawn = episode(cell, self._seed, self._command_of(cell))
        faults = drawn.faults
        struck = Struck(seat=faults[-1].seat, all_seats=tuple(fault.seat for fault in faults), control=cell.row.control)
        undisturbed = self._runner.undisturbed(msgspec.structs.replace(drawn.run, options=()))
        return struck, undisturbed, self._runner.drilled(drawn.run, faults)

    def _of_nodes(self, cell: Cell) -> tuple[Struck, Evidence, Evidence]:
        command = (*self._command_of(cell), *(() if self._command else ("--step-s", "0.1")))
        spec = NodesSpec(command, nnodes=SEATS, spare_nodes=1, authority="etcd", timeout_s=_NODES_S)
        if spec not in self._nodes:
            self._nodes[spec] = Nodes(spec, self._folder / f"nodes-{len(self._nodes) + 1}", namespaces=True)
        self._last = nodes = self._nodes[spec]
        faults = node_faults(cell, self._seed)
        evidence = nodes.drilled(faults)
        seats = tuple(_seat_of(evidence, fault) for fault in faults)
        struck = Struck(seat=seats[-1], all_seats=seats)
        return struck, _as_one(nodes.undisturbed()), _as_one(evidence, faults[-1], seats[-1])

    def _command_of(self, cell: Cell) -> tuple[str, ...]:
        return self._command or (str(SMALL_JOB), "--steps", str(cell.row.steps or STEPS), *cell.row.asks)


def _not_here(cell: Cell) -> str:
    """Why a cell cannot be made on this machine, empty if it can."""
    if not cell.of_nodes:
        return ""
    problem = why_not() or ("" if shutil.which("etcd") else "the etcd server is not installed (Debian: etcd-server)")
    return f"not run: links are cut between network namespaces: {problem}" if problem else ""


def _as_one(evidence: NodesEvidence, fault: NodeFault | None = None, seat: int | None = None) -> Evidence:
    """What several nodes left behind as if it were one run: records that all nodes wrote are taken once.

    Closed steps are left out: each node tells the losses of its own seats. The final states are compared.
    """
    records: dict[object, Record] = {}
    for run in evidence.runs:
        for record in run.records:
            if isinstance(record.event, StepClosed):
                continue
            stamp = record.stamp
            key = (run.node, id(run), record.seq) if stamp is None else (stamp.epoch, stamp.seq)
            records.setdefault(key, record)
    merged = list(records.values())
    if fault is not None and fault in evidence.struck:
        event = FaultInjected(fault=fault.kind, seat=seat, proc=None, step=fault.step, moment=fault.moment)
        at_s = evidence.struck_s[evidence.struck.index(fault)]
        merged.append(Record(seq=0, wall_s=0.0, mono_s=at_s, run="", node=fault.node, term=0, event=event))
    merged.sort(key=lambda record: record.mono_s)
    finals = {seat: final for run in evidence.runs for seat, final in run.finals.items()}
    return Evidence(exit_code=0 if completed(evidence) else 1, records=tuple(merged), finals=finals)


def _seat_of(evidence: NodesEvidence, fault: NodeFault) -> int:
    """The seat on the struck node when the run began."""
    for run in evidence.runs:
        for record in run.records:
            if isinstance(record.event, TermBegan) and fault.node in record.event.nodes:
                return record.event.nodes.index(fault.node)
    return -1
