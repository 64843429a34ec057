"""What a drill of several nodes proved. Pure."""

from __future__ import annotations

import itertools
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from closeranks.drill.nodes.faults import COORDINATOR, ENDS_NODE, PARTS_NODES, NodeFault
from closeranks.drill.verdict import Final, Outcome, Verdict
from closeranks.events import CheckpointCommitted, Record, RunEnded, TermBegan

COMPLETED = "completed"
_TOLD_TO_LEAVE = 128 + signal.SIGTERM  # the exit code of a node that was, and did
_DEFECT = "defect in the supervisor"  # no reason to stop, whatever follows


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """A seat began to apply an update, as its own process wrote it down."""

    seat: int
    step: int
    term: int
    pid: int  # of the incarnation
    began_s: float  # all nodes of a drill are on one machine: one clock


class NodeRun(msgspec.Struct, frozen=True, kw_only=True):
    """One supervisor from its start to its end."""

    node: str
    ended_by_drill: bool
    exit_code: int | None  # of its command; None: it did not end in time
    records: tuple[Record, ...]
    finals: dict[int, Final]
    applied: tuple[Applied, ...]
    output: str = ""
    job: int = 1  # counts how often the job was started anew: terms begin again
    told_to_leave: bool = False  # the drill told it to leave, and did nothing else to it

    @property
    def end(self) -> RunEnded | None:
        """Its last word about the run."""
        ends = [record.event for record in self.records if isinstance(record.event, RunEnded)]
        return ends[-1] if ends else None


class NodesEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a run on several nodes left behind."""

    runs: tuple[NodeRun, ...]
    struck: tuple[NodeFault, ...] = ()
    struck_s: tuple[float, ...] = ()  # when, on the monotonic clock that all nodes share
    left: tuple[str, ...] = ()  # processes that outlived the run, by node and command line


def judge(faults: tuple[NodeFault, ...], undisturbed: NodesEvidence, drilled: NodesEvidence) -> Verdict:
    """Hold the run against what must never happen, and against the undisturbed run if a node says that it completed.

    A run may end before its time, but then every node must say why. It is held against the faults that struck; of one
    that was not struck at all nothing is known.
    """
    broken = [f"left behind: {left}" for left in drilled.left]
    for job in sorted({run.job for run in drilled.runs}):
        runs = [run for run in drilled.runs if run.job == job]
        broken += _endings(runs, drilled.struck)
        broken += applied_twice(applied for run in runs for applied in run.applied)
        broken += two_coordinators(record for run in runs for record in run.records)
    if went_on(drilled):
        broken += _different(undisturbed, drilled)
    unknown = []
    if faults and not drilled.struck:
        unknown += [f"never struck: {fault}" for fault in faults]
    if not completed(undisturbed):
        unknown.append("nothing to compare with: the undisturbed run did not complete")
    if broken:
        return Verdict(outcome=Outcome.BROKEN, reasons=(*broken, *unknown))
    if unknown:
        return Verdict(outcome=Outcome.UNKNOWN, reasons=tuple(unknown))
    return Verdict(outcome=Outcome.HELD)


def completed(evidence: NodesEvidence) -> bool:
    """Whether a node says that the run completed, and none that was left alone says otherwise."""
    return {run.end.outcome for run in evidence.runs if run.end and not run.ended_by_drill} == {COMPLETED}


def went_on(evidence: NodesEvidence) -> bool:
    """Whether a node that was left alone says that the run completed, whatever others say."""
    return any(run.end.outcome == COMPLETED for run in evidence.runs if run.end and not run.ended_by_drill)


def stops(evidence: NodesEvidence) -> tuple[str, ...]:
    """Why nodes that were left alone ended before their time, each reason once and with its nodes."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for run in evidence.runs:
        if run.end and not run.ended_by_drill and run.end.outcome != COMPLETED:
            found[run.end.reason].append(run.node)
    return tuple(f"{', '.join(sorted(set(nodes)))}: {reason}" for reason, nodes in found.items())


def applied_twice(applied: Iterable[Applied]) -> list[str]:
    """Updates that were begun by an incarnation, or under a term, that another one had followed already."""
    by_seat: defaultdict[int, list[Applied]] = defaultdict(list)
    for one in applied:
        by_seat[one.seat].append(one)
    broken = []
    for seat, ones in sorted(by_seat.items()):
        ones.sort(key=lambda one: one.began_s)
        followed: set[int] = set()  # incarnations after which another one has applied
        for before, one in itertools.pairwise(ones):
            if before.pid != one.pid:
                followed.add(before.pid)
            if one.pid in followed or one.term < before.term:
                broken.append(f"seat {seat}: {_spell(one)} {one.began_s - before.began_s:.3f} s after {_spell(before)}")
        times = Counter((one.term, one.step) for one in ones)
        broken += [
            f"seat {seat} applied step {step} {n} times under term {term}" for (term, step), n in times.items() if n > 1
        ]
    return broken


def two_coordinators(records: Iterable[Record]) -> list[str]:
    """Terms that were begun by more than one coordinator or with different members, and saves committed twice."""
    terms: defaultdict[int, set[tuple[tuple[int, ...], int]]] = defaultdict(set)
    commits: defaultdict[int, set[tuple[int, str]]] = defaultdict(set)
    for record in records:
        match record.event:
            case TermBegan(term=term, members=members):
                terms[term].add((members, 0 if record.stamp is None else record.stamp.epoch))
            case CheckpointCommitted(generation=generation, step=step):
                # Whoever leads notes it, without a stamp, and maybe late: the term of the record says nothing.
                commits[generation].add((step, record.node))
    broken = [f"term {term} was begun in several ways: {sorted(ways)}" for term, ways in terms.items() if len(ways) > 1]
    return broken + [
        f"generation {generation} was committed in several ways: {sorted(ways)}"
        for generation, ways in commits.items()
        if len(ways) > 1
    ]


def _spell(one: Applied) -> str:
    return f"process {one.pid} applied step {one.step} under term {one.term}"


def _endings(runs: list[NodeRun], struck: tuple[NodeFault, ...]) -> list[str]:
    """What is wrong with the ends of the nodes of one job."""
    alone = [run for run in runs if not run.ended_by_drill]
    ends = {(run.end.outcome, run.end.exit_code) for run in alone if run.end}
    without_it = any(outcome == COMPLETED for outcome, _ in ends)
    came_back = {run.node for run in runs if run.ended_by_drill}
    broken = []
    for run in runs:
        if run.ended_by_drill and not run.told_to_leave:
            continue
        end, problem = run.end, _ending(run)
        if end is None or problem:
            broken.append(problem)
        elif _parted(run.node, struck):
            continue  # any reason is one
        elif run.told_to_leave:
            if run.exit_code != _TOLD_TO_LEAVE and (end.outcome, end.exit_code) not in ends:
                expected = f"expected {_TOLD_TO_LEAVE} or the end of the others"
                broken.append(f"{run.node} was told to leave and ended with {run.exit_code} ({end.reason}), {expected}")
        elif end.outcome != COMPLETED and without_it and run.node not in came_back:
            broken.append(f"{run.node} ended as {end.outcome} ({end.reason}), though the run completed without it")
    return broken


def _ending(run: NodeRun) -> str:
    """What is wrong with the end of one node, whatever became of the others; empty if nothing is."""
    end = run.end
    if run.exit_code is None:
        return f"{run.node} did not end in time"
    if end is None:
        return f"{run.node} ended with {run.exit_code} and no word about it in its journal"
    left = run.told_to_leave and run.exit_code == _TOLD_TO_LEAVE  # maybe told after its last word
    if run.exit_code != end.exit_code and not left:
        return f"{run.node} ended with {run.exit_code}, and with {end.exit_code} according to its journal"
    if end.outcome != COMPLETED and not end.reason:
        return f"{run.node} ended as {end.outcome} without a reason"
    return f"{run.node} ended by a {end.reason}" if end.reason.startswith(_DEFECT) else ""


def _parted(node: str, struck: tuple[NodeFault, ...]) -> bool:
    """Whether a fault may have kept the node from the others for so long that they went on without it."""
    lasting = [fault for fault in struck if fault.kind not in ENDS_NODE]
    return any(fault.kind in PARTS_NODES or fault.node in {node, COORDINATOR} for fault in lasting)


def _different(undisturbed: NodesEvidence, drilled: NodesEvidence) -> list[str]:
    expected, found = _finals(undisturbed), _finals(drilled)
    broken = []
    for seat, finals in sorted(expected.items()):
        got = found.get(seat, [])
        if len(got) != 1:
            broken.append(f"seat {seat} left {len(got)} final states, expected one")
        elif got != finals:
            broken.append(f"seat {seat} ended otherwise than undisturbed: {finals[0]} became {got[0]}")
    return broken


def _finals(evidence: NodesEvidence) -> dict[int, list[Final]]:
    found: defaultdict[int, list[Final]] = defaultdict(list)
    for run in evidence.runs:
        for seat, final in run.finals.items():
            if final not in found[seat]:  # a seat may move in its last step: two that agree are one
                found[seat].append(final)
    return found
