"""What a drill of several nodes proved. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from closeranks.drill.nodes.faults import NodeFault
from closeranks.drill.verdict import Final, Outcome, Verdict
from closeranks.events import CheckpointCommitted, Record, RunEnded, TermBegan

COMPLETED = "completed"


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
    exit_code: int | None  # None: it did not end in time
    records: tuple[Record, ...]
    finals: dict[int, Final]
    applied: tuple[Applied, ...]
    output: str = ""
    job: int = 1  # counts how often the job was started anew: terms begin again


class NodesEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a run on several nodes left behind."""

    runs: tuple[NodeRun, ...]
    struck: tuple[NodeFault, ...] = ()
    struck_s: tuple[float, ...] = ()  # when, on the monotonic clock that all nodes share
    left: tuple[str, ...] = ()  # processes that outlived the run, by node and command line


def judge(faults: tuple[NodeFault, ...], undisturbed: NodesEvidence, drilled: NodesEvidence) -> Verdict:
    """Hold the run against what must never happen, and against the undisturbed run if it completed.

    A run may end before its time, but then every node must say why.
    """
    broken = [f"left behind: {left}" for left in drilled.left]
    broken += _endings(drilled.runs)
    for job in sorted({run.job for run in drilled.runs}):
        runs = [run for run in drilled.runs if run.job == job]
        broken += applied_twice(applied for run in runs for applied in run.applied)
        broken += two_coordinators(record for run in runs for record in run.records)
    if completed(drilled) and not broken:
        broken += _different(undisturbed, drilled)
    unknown = [f"never struck: {fault}" for fault in faults if fault not in drilled.struck]
    if not completed(undisturbed):
        unknown.append("nothing to compare with: the undisturbed run did not complete")
    if broken:
        return Verdict(outcome=Outcome.BROKEN, reasons=(*broken, *unknown))
    if len(unknown) > len(faults) - 1 > 0 or (unknown and len(faults) <= 1):
        return Verdict(outcome=Outcome.UNKNOWN, reasons=tuple(unknown))
    return Verdict(outcome=Outcome.HELD)


def completed(evidence: NodesEvidence) -> bool:
    """Whether a node says that the run completed, and none that was left alone says otherwise."""
    outcomes = {event.outcome for run in evidence.runs for event in _ends(run) if not run.ended_by_drill}
    return outcomes == {COMPLETED}


def stop_reason(evidence: NodesEvidence) -> str:
    """Why a run ended before its time, empty if it completed."""
    reasons = [event.reason for run in evidence.runs for event in _ends(run) if event.outcome != COMPLETED]
    return "" if completed(evidence) or not reasons else reasons[0]


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
    commits: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for record in records:
        epoch = 0 if record.stamp is None else record.stamp.epoch
        match record.event:
            case TermBegan(term=term, members=members):
                terms[term].add((members, epoch))
            case CheckpointCommitted(generation=generation, step=step):
                commits[generation].add((step, epoch))
    broken = [f"term {term} was begun in several ways: {sorted(ways)}" for term, ways in terms.items() if len(ways) > 1]
    return broken + [
        f"generation {generation} was committed in several ways: {sorted(ways)}"
        for generation, ways in commits.items()
        if len(ways) > 1
    ]


def _spell(one: Applied) -> str:
    return f"process {one.pid} applied step {one.step} under term {one.term}"


def _ends(run: NodeRun) -> list[RunEnded]:
    return [record.event for record in run.records if isinstance(record.event, RunEnded)]


def _endings(runs: tuple[NodeRun, ...]) -> list[str]:
    broken = []
    for run in runs:
        ends = _ends(run)
        if run.ended_by_drill:
            continue
        if run.exit_code is None:
            broken.append(f"{run.node} did not end in time")
        elif not ends:
            broken.append(f"{run.node} ended with {run.exit_code} and no word about it in its journal")
        elif not ends[-1].reason and ends[-1].outcome != COMPLETED:
            broken.append(f"{run.node} ended as {ends[-1].outcome} without a reason")
    return broken


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
