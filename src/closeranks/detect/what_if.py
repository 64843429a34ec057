"""What slow operations cost a job: its trace is played again, with every operation as fast as its like usually is.

Operations wait for those before them, and for their partners where several meet; how long each takes once it could
run is what is played. The ratio of the two plays is what differences between ranks, stages and steps cost; keeping
only some operations as they were shows what those alone cost.

Source: Lin et al., "Understanding stragglers in large model training using what-if analysis", OSDI 2025: ideal is the
mean of computations and the median of communications of one kind, over ranks, stages and steps.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

_EARLY_S = 0.01  # a transfer that ended so long before it began, by clocks that differ, took no time


class Operation(NamedTuple):
    """One operation of a trace of data-parallel pipelines."""

    step: int
    replica: int
    stage: int
    kind: str
    number: int  # 0.. of its kind, in this step on this rank
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """When it ended."""
        return self.start_s + self.duration_s


class Task(NamedTuple):
    """What is played: ``after`` names tasks, by index, that must have ended; members of ``meeting`` run together."""

    after: tuple[int, ...]
    takes_s: float
    meeting: Hashable = None  # None: it runs alone


FORWARD, BACKWARD, UPDATE, COLLECTION = "forward-compute", "backward-compute", "optimizer", "gc"
_GATHER, _SCATTER = "params-all-gather", "grads-reduce-scatter"
_NORM, _EMBEDDING, _CLIP = "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad"
_COMPUTED = frozenset({FORWARD, BACKWARD, UPDATE, COLLECTION})
_TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
_TAIL = (COLLECTION, _NORM, _EMBEDDING, _SCATTER, _CLIP, UPDATE)  # after the last computation, in this order


def play(tasks: Sequence[Task]) -> list[float]:
    """When each task ends, if none starts later than it could.

    Raises:
        ValueError: tasks wait for each other in a circle, or for partners that never come.
    """
    ends_s: list[float | None] = [None] * len(tasks)
    starts_s = [0.0] * len(tasks)
    waits = [len(task.after) for task in tasks]
    followers: dict[int, list[int]] = defaultdict(list)
    partners: dict[Hashable, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        partners[task.meeting if task.meeting is not None else index].append(index)
        for before in task.after:
            followers[before].append(index)
    missing = {meeting: len(members) for meeting, members in partners.items()}
    ready = deque(index for index, count in enumerate(waits) if not count)
    while ready:
        index = ready.popleft()
        meeting = tasks[index].meeting if tasks[index].meeting is not None else index
        starts_s[index] = max((end_s for i in tasks[index].after if (end_s := ends_s[i]) is not None), default=0.0)
        missing[meeting] -= 1
        if missing[meeting]:
            continue
        together_s = max(starts_s[i] for i in partners[meeting])
        for member in partners[meeting]:
            ends_s[member] = together_s + tasks[member].takes_s
            for follower in followers[member]:
                waits[follower] -= 1
                if not waits[follower]:
                    ready.append(follower)
    done = [end_s for end_s in ends_s if end_s is not None]
    if len(done) < len(tasks):
        raise ValueError(f"{len(tasks) - len(done)} of {len(tasks)} operations wait for each other, or for partners")
    return done


def slowdown(operations: Sequence[Operation], kept: Callable[[Operation], bool] = lambda _: True) -> float:
    """Mean step time over that of the ideal job, if only operations that are ``kept`` take as long as they did."""
    after = _dependencies(operations)
    meetings = [_meeting(operation) for operation in operations]
    took_s = _durations(operations, meetings)
    ideal_s = _ideal(operations, took_s)
    mixed_s = [took if kept(op) else ideal for op, took, ideal in zip(operations, took_s, ideal_s, strict=True)]

    def mean_step_s(takes_s: Sequence[float]) -> float:
        tasks = [Task(after[i], takes_s[i], meetings[i]) for i in range(len(operations))]
        ends_s: dict[int, float] = {}
        for operation, end_s in zip(operations, play(tasks), strict=True):
            ends_s[operation.step] = max(end_s, ends_s.get(operation.step, 0.0))
        return statistics.fmean(ends_s.values())

    return mean_step_s(mixed_s) / mean_step_s(ideal_s)


def _durations(operations: Sequence[Operation], meetings: Sequence[Hashable]) -> list[float]:
    """How long each took since it could run: of a meeting, since the last of its members had come."""
    came_s: dict[Hashable, float] = {}
    for operation, meeting in zip(operations, meetings, strict=True):
        if meeting is not None:
            came_s[meeting] = max(operation.start_s, came_s.get(meeting, operation.start_s))
    took_s = []
    for operation, meeting in zip(operations, meetings, strict=True):
        spent_s = operation.duration_s if meeting is None else operation.end_s - came_s[meeting]
        took_s.append(0.0 if spent_s <= -_EARLY_S else spent_s)
    return took_s


def _ideal(operations: Sequence[Operation], took_s: Sequence[float]) -> list[float]:
    alike: dict[str, list[float]] = defaultdict(list)
    for operation, spent_s in zip(operations, took_s, strict=True):
        alike[operation.kind].append(spent_s)
    usual = {kind: (statistics.fmean if kind in _COMPUTED else statistics.median)(s) for kind, s in alike.items()}
    return [usual[operation.kind] for operation in operations]


def _meeting(operation: Operation) -> Hashable:
    """Operations with the same answer run together."""
    step, replica, stage, kind, number, *_ = operation
    match kind:
        case "forward-send" | "backward-recv":
            return step, replica, kind.split("-")[0], stage, number
        case "forward-recv" | "backward-send":
            return step, replica, kind.split("-")[0], stage - 1, number
        case _ if kind in (_GATHER, _SCATTER):
            return step, kind, stage, number
        case _ if kind == _EMBEDDING:
            return step, kind, replica, number
        case _ if kind == _CLIP:
            return step, kind, number
    return None


def _dependencies(operations: Sequence[Operation]) -> list[tuple[int, ...]]:
    """Which operations each waits for on its own rank."""
    ranks: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for index, operation in enumerate(operations):
        ranks[operation.step, operation.replica, operation.stage].append(index)
    after: list[set[int]] = [set() for _ in operations]
    for members in ranks.values():
        by_kind: dict[str, list[int]] = defaultdict(list)
        for index in sorted(members, key=lambda i: operations[i].start_s):
            by_kind[operations[index].kind].append(index)
        _chain_rank(operations, by_kind, after)
    return [tuple(sorted(before)) for before in after]


def _chain_rank(operations: Sequence[Operation], by_kind: Mapping[str, list[int]], after: list[set[int]]) -> None:
    computed = sorted(
        (index for kind in (FORWARD, BACKWARD) for index in by_kind.get(kind, ())),
        key=lambda index: operations[index].start_s,
    )
    _chain(computed, after)
    for kind in _TRANSFERS:
        transfers = by_kind.get(kind, [])
        _chain(transfers, after)
        partner = by_kind.get(f"{kind.split('-')[0]}-compute", [])
        for number, (transfer, computation) in enumerate(zip(transfers, partner, strict=False)):
            if kind.endswith("send"):
                after[transfer].add(computation)
                continue
            after[computation].add(transfer)
            if number:
                after[transfer].add(partner[number - 1])
    _begin_backward(operations, by_kind, computed, after)
    gathers = by_kind.get(_GATHER, [])
    _chain([*gathers, *by_kind.get(_SCATTER, [])], after)
    if gathers and computed:
        after[computed[0]].add(gathers[-1])
    _chain([*computed[-1:], *(index for kind in _TAIL for index in by_kind.get(kind, ()))], after)


def _begin_backward(
    operations: Sequence[Operation], by_kind: Mapping[str, list[int]], computed: list[int], after: list[set[int]]
) -> None:
    """The first transfers backwards are launched once the computation before the last forward one has ended."""
    first = next((at for at, index in enumerate(computed) if operations[index].kind == BACKWARD), 0)
    if first > 1:
        for kind in ("backward-send", "backward-recv"):
            for transfer in by_kind.get(kind, ())[:1]:
                after[transfer].add(computed[first - 2])


def _chain(indices: Iterable[int], after: list[set[int]]) -> None:
    before: int | None = None
    for index in indices:
        if before is not None:
            after[index].add(before)
        before = index
