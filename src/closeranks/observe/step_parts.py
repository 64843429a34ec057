"""Steps of a job on several nodes: each node tells of its own seats, and a step is closed when every seat's part is in.

Where a part is missing, what came after decides, as it does on one node: if the job went on from the step, then its
result stood, whoever died before telling; if it did not, nobody counts the attempt.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from closeranks.events import Record, RestorePlanned, RunStarted, StepClosed, TermBegan
from closeranks.signs import mean_of


class _Seating(NamedTuple):
    """Which node each seat was on from an instant on."""

    at_s: float
    nodes: tuple[str, ...]  # by seat, "" where unknown


class Lack(NamedTuple):
    """Steps that were closed, and of which a node that was there told nothing."""

    node: str
    steps: tuple[int, ...]


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of the job, in the order of their closing."""

    records: tuple[Record, ...]
    lacks: tuple[Lack, ...]


class _Attempt:
    """Parts of one closing of one step."""

    def __init__(self) -> None:
        self.parts: list[tuple[Record, StepClosed]] = []
        self.seats: set[int] = set()

    def add(self, record: Record, part: StepClosed, seats: Iterable[int]) -> None:
        self.parts.append((record, part))
        self.seats.update(seats)

    @property
    def closed_s(self) -> float:
        return max(part.closed_mono_s for _, part in self.parts)


def join(records: Sequence[Record], at_hand: frozenset[str]) -> Joined:
    """Join the parts in ``records``, which are in job time; ``at_hand``: nodes whose journal is among them."""
    seats = _seat_count(records)
    seatings = [_Seating(r.mono_s, r.event.nodes) for r in records if isinstance(r.event, TermBegan)]
    plans = sorted((r.mono_s, r.event.step) for r in records if isinstance(r.event, RestorePlanned))
    parts = sorted(
        ((r, r.event) for r in records if isinstance(r.event, StepClosed)), key=lambda part: part[1].closed_mono_s
    )
    missing: dict[str, list[int]] = defaultdict(list)
    highest: dict[int, int] = {}  # step by stretch between two restore plans
    attempts: list[tuple[int, _Attempt]] = []
    for stretch, attempt in _attempts(parts, [at_s for at_s, _ in plans], seats):
        step = attempt.parts[0][1].step
        highest[stretch] = max(step, highest.get(stretch, -1))
        attempts.append((stretch, attempt))
    joined: list[Record] = []
    newest = -1
    for stretch, attempt in sorted(attempts, key=lambda item: item[1].closed_s):
        step = attempt.parts[0][1].step
        untold = _nodes_of(set(range(seats)) - attempt.seats, seatings, attempt.closed_s)
        others_went_on = highest[stretch] > step
        stood = others_went_on or (stretch < len(plans) and plans[stretch][1] >= step)
        if not stood and untold & at_hand:
            continue
        for node in untold if others_went_on else untold - at_hand:
            missing[node].append(step)
        joined.append(_joined(attempt, seats, repeated=step <= newest))
        newest = max(newest, step)
    lacks = tuple(Lack(node, tuple(steps)) for node, steps in sorted(missing.items()))
    return Joined(records=tuple(joined), lacks=lacks)


def _seat_count(records: Sequence[Record]) -> int:
    started = (record.event.seats for record in records if isinstance(record.event, RunStarted))
    seated = (len(record.event.members) for record in records if isinstance(record.event, TermBegan))
    return max((*started, *seated), default=0)


def _attempts(
    parts: Iterable[tuple[Record, StepClosed]], plans_s: Sequence[float], seats: int
) -> Iterable[tuple[int, _Attempt]]:
    """Every closing with the number of restore plans before it began: between two plans a seat closes a step once.

    A seat whose attempt was void when its peers had applied it closes it after the plan, with them.
    """
    found: dict[tuple[int, int], list[_Attempt]] = defaultdict(list)
    for record, part in parts:
        stretch = bisect.bisect_right(plans_s, part.began_mono_s)
        speaks_for = part.seats or range(seats)
        tries = found[stretch, part.step]
        if not tries or tries[-1].seats.intersection(speaks_for):  # or the plan between them is in no journal at hand
            tries.append(_Attempt())
        tries[-1].add(record, part, speaks_for)
    return [(stretch, attempt) for (stretch, _), tries in found.items() for attempt in tries]


def _nodes_of(seats: Iterable[int], seatings: Sequence[_Seating], at_s: float) -> set[str]:
    index = bisect.bisect_right(seatings, at_s, key=lambda seating: seating.at_s) - 1
    nodes = seatings[index].nodes if index >= 0 else ()
    # Seats beyond those of a known term are not there: the group went on with fewer.
    return {nodes[seat] if nodes else "" for seat in seats if seat < len(nodes) or not nodes}


def _joined(attempt: _Attempt, seats: int, *, repeated: bool) -> Record:
    losses, own_s = (
        _merged([getattr(part, name)[:seats] for _, part in attempt.parts], seats) for name in ("losses", "own_s")
    )
    last = max((record for record, _ in attempt.parts), key=lambda record: record.mono_s)
    event = StepClosed(
        step=attempt.parts[0][1].step,
        began_mono_s=min(part.began_mono_s for _, part in attempt.parts),
        closed_mono_s=attempt.closed_s,
        losses=tuple(losses),
        repeated=repeated,
        seats=() if len(attempt.seats) >= seats else tuple(sorted(attempt.seats)),
        own_s=tuple(own_s) if any(own_s) else (),
        grad_norm=mean_of(part.grad_norm for _, part in attempt.parts),
    )
    return msgspec.structs.replace(last, event=event)


def _merged(parts: Sequence[Sequence[float | None]], seats: int) -> list[float | None]:
    """What each seat's node told of it."""
    found: list[float | None] = [None] * seats
    for part in parts:
        for seat, value in enumerate(part):
            found[seat] = value if value is not None else found[seat]
    return found
