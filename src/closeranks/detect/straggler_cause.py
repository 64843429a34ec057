"""Why processes are slow, and what they have in common: the time of their operations, and where they sit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from closeranks.detect.straggler import Slow
from closeranks.detect.timings import UPDATING, Excess, Operation, compare, operation_of, typical

_EXPLAINS = 0.5  # share of what is spent more that an operation has to account for
_ALIKE = 0.9  # operations with so much of the largest excess explain it as well: the shortest of them lies inside
_TELLING = 0.02  # an operation shorter than this share of a step says nothing about the device
_FOLLOWS = 0.5  # the update is slow too if it is slower by so much of what the process is slower by


class Cause(StrEnum):
    """What slows a process, as far as timings tell."""

    DATA = "data loading"
    GARBAGE = "garbage collection"
    WORK = "more work a step"  # its share of the data takes longer, or its script does more; the device is as fast
    DEVICE = "slow device"  # what does not depend on the batch is slow too
    COMPUTE = "computation"  # one of these two
    NETWORK = "network"
    UNKNOWN = "unknown"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process sits."""

    seat: int
    node: str = ""  # "": the only node
    domains: Mapping[str, str] = {}  # level to name: what fails as one


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest part of the job that holds the slow processes and nobody else."""

    scope: str  # "seat", "seats", "node", or the level of a domain
    where: str  # "seat 2", "n1", "r7"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A cause and what speaks for it."""

    cause: Cause
    evidence: str


def shared(slow: frozenset[int], places: Mapping[int, Place]) -> Shared:
    """What the slow processes have in common. One process of a node with a single one is a seat."""
    known = {proc: place for proc, place in places.items() if proc in slow}
    seats = sorted(place.seat for place in known.values())
    if len(seats) == 1:
        return Shared(scope="seat", where=f"seat {seats[0]}")
    groups: list[tuple[str, str, frozenset[int]]] = []
    for place in known.values():
        on_node = frozenset(p for p, other in places.items() if other.node == place.node)
        groups.append(("node", place.node, on_node))
        for level, name in place.domains.items():
            inside = frozenset(p for p, other in places.items() if other.domains.get(level) == name)
            groups.append((level, name, inside))
    exact = [(level, name) for level, name, procs in groups if procs == slow and len(procs) < len(places)]
    if exact:
        level, name = exact[0]
        return Shared(scope=level, where=name or "the only node")
    return Shared(scope="seats", where=f"seats {', '.join(map(str, seats))}")


def explain(found: Slow) -> Explanation:
    """The operation that accounts for what the slow processes spend more, and what follows from it."""
    windows = [window for window in found.windows if set(found.slower) & set(window.slow)]
    slow = set(found.slower)
    own = typical([{proc: {"own": s} for proc, s in window.own_s.items()} for window in windows])
    more_s = next((excess.more_s for excess in compare(own, slow)), 0.0)
    step_s = statistics.median(sections["own"] for sections in own.values())
    excesses = compare(typical([window.sections_s() for window in windows]), slow)
    by_operation = _by_operation(excesses, more_s)
    if by_operation is not None:
        operation = operation_of(by_operation.name)
        if operation in (Operation.DATA, Operation.GARBAGE):
            return Explanation(cause=Cause(operation.value), evidence=_told(by_operation))
    update = next((e for e in excesses if e.name == UPDATING and e.others_s > _TELLING * step_s), None)
    where = "" if by_operation is None else f"{_told(by_operation)}; "
    if update is not None:
        return _by_update(update, statistics.median(found.slower.values()), where)
    if by_operation is not None:
        return Explanation(cause=Cause.COMPUTE, evidence=_told(by_operation))
    if any(operation_of(excess.name) is Operation.DATA for excess in excesses):
        return Explanation(cause=Cause.COMPUTE, evidence="no timed operation accounts for it, loading data does not")
    return Explanation(
        cause=Cause.UNKNOWN, evidence="no timed operation accounts for it; time loading and forward with job.timer"
    )


def _by_operation(excesses: tuple[Excess, ...], more_s: float) -> Excess | None:
    enough = [e for e in excesses if e.name != UPDATING and e.more_s > max(0.0, _EXPLAINS * more_s)]
    if not enough:
        return None
    alike = [e for e in enough if e.more_s >= _ALIKE * enough[0].more_s]
    return min(alike, key=lambda excess: (excess.slow_s, excess.name))


def _by_update(update: Excess, slower: float, where: str) -> Explanation:
    """An update takes as long for any batch: a device that is slow is slow in it."""
    ratio = update.slow_s / update.others_s - 1
    if ratio > _FOLLOWS * slower:
        evidence = f"{where}the update, for which no batch matters, is {ratio:.0%} slower too"
        return Explanation(cause=Cause.DEVICE, evidence=evidence)
    evidence = f"{where}the update, for which no batch matters, is as fast as elsewhere"
    return Explanation(cause=Cause.WORK, evidence=evidence)


def _told(excess: Excess) -> str:
    return f"{excess.name} takes {_short(excess.slow_s)} a step, {_short(excess.others_s)} elsewhere"


def _short(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
