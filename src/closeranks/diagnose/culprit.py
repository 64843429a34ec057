"""Who did it: the rank, node and device that the evidence names, or nobody."""

from __future__ import annotations

from collections.abc import Sequence

from closeranks.diagnose.evidence import Evidence, Standing, Unit
from closeranks.faults import CATALOGUE, Scope

_TELLS_OF_ITSELF = frozenset({Standing.DEVICE, Standing.SPECIFIC, Standing.GENERAL, Standing.ENDING})

_RANKS_THAT_AGREE = 2  # with fewer who waited, silence might be chance


def culprit_of(lead: Evidence, live: Sequence[Evidence], known: frozenset[int]) -> Unit:
    """The unit to blame. Empty where all ranks show the same, and where nothing tells waiting ranks from awaited ones.

    ``known``: ranks whose logs were read.
    """
    if lead.standing is Standing.SYMPTOM:
        return lead.unit if lead.points else _behind(lead, live) or only_silent(live, known)
    if lead.mutual:
        return Unit()
    ranks = {item.unit.rank for item in live if item.unit.rank is not None and not item.points}
    same = alike(lead, live)
    if len(same) > 1 and set(same) == ranks:
        return Unit()
    if lead.unit.rank is not None:
        return lead.unit
    if _of_the_job(lead):
        return lead.unit
    return _with_rank(lead.unit or _named_beside(lead, live), live)


def _named_beside(lead: Evidence, live: Sequence[Evidence]) -> Unit:
    """The only place that others name who say the same, where the lead names none."""
    units = {item.unit for item in live if item.fault == lead.fault and item.standing is lead.standing and item.unit}
    return units.pop() if len(units) == 1 else Unit()


def _of_the_job(lead: Evidence) -> bool:
    """A scheduler that ends a job ends all of its ranks: none of them is to blame."""
    fault = CATALOGUE.get(lead.fault)
    return fault is not None and fault.scope is Scope.JOB


def alike(lead: Evidence, live: Sequence[Evidence]) -> tuple[int, ...]:
    """Ranks that show the lead's fault by words of their own."""
    if lead.standing not in _TELLS_OF_ITSELF:
        return ()
    return tuple(sorted({item.unit.rank for item in live if item.fault == lead.fault and item.unit.rank is not None}))


def only_silent(live: Sequence[Evidence], known: frozenset[int]) -> Unit:
    """The only rank that neither waited in vain nor lost a peer, while all others did: it is the one they lacked."""
    hurt = {item.unit.rank for item in live if item.standing in (Standing.SYMPTOM, Standing.VICTIM)}
    others = known - hurt
    return Unit(rank=min(others)) if len(others) == 1 and len(known) > _RANKS_THAT_AGREE else Unit()


def _behind(lead: Evidence, live: Sequence[Evidence]) -> Unit:
    """The only rank whose collective has a lower number than all others': they wait for it."""
    numbers: dict[int, int] = {}
    for item in live:
        if item.unit.rank is not None and item.sequence is not None and item.fault == lead.fault:
            numbers[item.unit.rank] = min(item.sequence, numbers.get(item.unit.rank, item.sequence))
    lowest = min(numbers.values(), default=0)
    ranks = [rank for rank, number in numbers.items() if number == lowest]
    return Unit(rank=ranks[0]) if len(ranks) == 1 and len(numbers) > 1 else Unit()


def _with_rank(unit: Unit, live: Sequence[Evidence]) -> Unit:
    """A kernel knows devices and nodes; the rank is the only one that failed there by itself, if there is only one."""
    failed = {
        item.unit.rank
        for item in live
        if item.standing in _TELLS_OF_ITSELF
        and item.fault
        and item.unit.rank is not None
        and (not unit.node or item.unit.node in ("", unit.node))
    }
    return Unit(rank=failed.pop(), node=unit.node, device=unit.device) if len(failed) == 1 else unit
