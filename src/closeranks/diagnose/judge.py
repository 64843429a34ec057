"""Evidence -> a verdict, by ordered rules and without chance: the same evidence in any order gives the same verdict.

What goes before what, and why (measured with gloo, three ranks, faults of known place): exit codes mislead, for
victims abort and a resumed culprit exits with 0; a victim blames "a remote worker" whatever happened to it. Better
evidence, in this order, is what a device or kernel says, the first failure in time with words of its own, and the
rank whose number of collectives is behind. Where that does not decide, nothing is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from closeranks import faults
from closeranks.diagnose.culprit import alike, culprit_of, only_silent
from closeranks.diagnose.evidence import Evidence, Source, Standing, Unit
from closeranks.diagnose.verdict import Rejected, Verdict, unknown
from closeranks.faults import Fault, Persistence, Scope, fault_named

SKEW_S: Final = 2.0  # clocks of nodes differ, and loggers write late: nearer times do not tell who was first
UNDATED_LAG_S: Final = 600.0  # the same after words without a time, which may be younger than the line above them
DEVICE_LAG_S: Final = 60.0  # a kernel writes its line after the process has felt the fault, but not much later
CONFIDENCE_MIN: Final = 0.4  # below, a name would be wrong more often than it helps
CONFIDENCE_MAX: Final = 0.99
_PROOF_LINES: Final = 3
_REJECTED_MAX: Final = 6
_BURSTS_OF_A_BROKEN_DEVICE: Final = 5  # within a day (NVSentinel)
_VISITS_OF_A_BROKEN_NODE: Final = 3
_OWN: Final = frozenset({Standing.DEVICE, Standing.SPECIFIC, Standing.GENERAL})
_RIVALRY: Final = 0.3  # what an equal rival takes from the confidence
_SECOND_SOURCE: Final = 0.5  # how much of a second source's weight counts: it may repeat what the first one says


def judge(evidence: Iterable[Evidence], *, kernel_read: bool = False, ranks: frozenset[int] = frozenset()) -> Verdict:
    """The verdict on what was found.

    ``kernel_read``: a kernel log was read, so that its silence means something; ``ranks``: whose logs were read.
    """
    everything = sorted(evidence, key=_in_story)
    live = [item for item in everything if not _is_past(item, everything) and item.source is not Source.HISTORY]
    excluded = _excluded(live)
    causes = [item for item in live if item.fault and item.standing <= Standing.SYMPTOM and item not in excluded]
    leads = _leads(causes)
    if not leads:
        return _nothing(everything, live, ranks)
    lead = _first(leads)
    pointed = {item.unit.rank for item in live if item.points}
    rivals = [item for item in leads if lead.unit.rank not in pointed and _rivals(lead, item)]
    rejected = tuple(_rejected(lead, item) for item in leads if item is not lead and item.fault != lead.fault)
    rejected += tuple(
        Rejected(fault=item.fault, unit=item.unit, reason=f"the words rule it out: {_by_whom(live, item)}")
        for item in excluded
    )
    rejected += _not_out_of_memory(lead, kernel_read=kernel_read)
    confidence = _confidence(lead, live, rivals)
    against = tuple(f"{item.unit or item.place} shows {item.fault} at the same time: {item.text}" for item in rivals)
    rejected = tuple({(item.fault, item.reason): item for item in rejected}.values())[:_REJECTED_MAX]
    if confidence < CONFIDENCE_MIN:
        weak = Rejected(fault=lead.fault, unit=lead.unit, reason=f"its confidence of {confidence:.2f} is too low")
        return unknown(against=against, rejected=(weak, *rejected), proof=(lead,))
    found = Verdict(
        fault=lead.fault,
        persistence=fault_named(lead.fault).persistence,
        manifestation=fault_named(lead.fault).manifestation,
        scope=fault_named(lead.fault).scope,
        confidence=round(confidence, 2),
        culprit=culprit_of(lead, live, ranks),
        alike=alike(lead, causes),
        summary=fault_named(lead.fault).summary,
        advice=_advice(lead, live),
        proof=_proof(lead, live),
        against=against,
        rejected=rejected,
    )
    return _of_many_units(lead, causes, _with_history(lead, everything, found))


def _in_story(item: Evidence) -> tuple[float, int, int, str, str]:
    at_s = float("inf") if item.at_s is None else item.at_s
    return at_s, item.order, item.standing, item.rule, str(item.unit)


def _is_past(item: Evidence, everything: Sequence[Evidence]) -> bool:
    """It was handled, or it passed and no process said while it lasted that something was wrong."""
    if item.went_on or not item.over:
        return item.went_on
    return not any(
        other.source in (Source.LOG, Source.LAUNCHER)
        and other.standing <= Standing.VICTIM
        and not other.went_on
        and _meanwhile(item, other)
        for other in everything
    )


def _meanwhile(item: Evidence, other: Evidence) -> bool:
    if item.at_s is None or item.over_s is None or other.at_s is None:
        return False
    return item.at_s - SKEW_S <= other.at_s <= item.over_s + DEVICE_LAG_S


# --- who is first ---------------------------------------------------------------------------------------------------


def _leads(causes: Sequence[Evidence]) -> list[Evidence]:
    """The nearest to the cause that each unit has to say; of equals the first."""
    best: dict[object, Evidence] = {}
    for item in causes:
        key = _speaker(item)
        known = best.get(key)
        if known is None or _nearness(item) < _nearness(known):
            best[key] = item
    return list(best.values())


def _speaker(item: Evidence) -> object:
    if item.unit.rank is not None:
        return item.unit.rank
    return (item.unit.node, item.unit.device) if item.unit != Unit() else item.place.file


def _nearness(item: Evidence) -> tuple[int, int]:
    """An ending that says little (an abort) is further away than the symptom before it."""
    weak = item.standing is Standing.ENDING and item.weight < _SECOND_SOURCE
    return Standing.SYMPTOM + 1 if weak else item.standing, item.order


def _first(leads: Sequence[Evidence]) -> Evidence:
    own = [item for item in leads if item.standing in _OWN]
    symptoms = [item for item in leads if item.standing is Standing.SYMPTOM]
    pointed = {item.unit.rank for item in leads if item.points}
    if own:
        chosen = min(_not_late(own), key=lambda item: _order_of_own(item, pointed))
        before = [item for item in symptoms if _is_before(item, chosen)]
        if chosen.standing is not Standing.GENERAL or not before:
            return chosen
        return _first_symptom(before)
    ended = [item for item in leads if item.standing is Standing.ENDING and item.weight >= _SECOND_SOURCE]
    if ended:
        return min(_not_late(ended), key=lambda item: (item.unit.rank not in pointed, -item.weight, _in_story(item)))
    return _first_symptom(symptoms) if symptoms else min(leads, key=_in_story)


def _order_of_own(item: Evidence, pointed: set[int | None]) -> tuple[object, ...]:
    no_sequence = item.sequence is None
    return (
        item.standing is not Standing.DEVICE,
        bool(pointed) and item.unit.rank not in pointed,
        item.standing,
        no_sequence,
        item.sequence or 0,
        _in_story(item),
    )


def _first_symptom(symptoms: Sequence[Evidence]) -> Evidence:
    return min(symptoms, key=lambda item: (not item.points, item.source is not Source.RECORDER, _in_story(item)))


def _not_late(items: Sequence[Evidence]) -> list[Evidence]:
    """Without those that came when another had failed already; whoever has no clock is never late."""
    times = [(item.at_s, item.dated) for item in items if item.at_s is not None]
    if not times:
        return list(items)
    first_s, dated = min(times)
    return [item for item in items if item.at_s is None or item.at_s <= first_s + _lag_s(item, dated=dated)]


def _lag_s(item: Evidence, *, dated: bool) -> float:
    """How much later than the first failure it may be; ``dated``: that one has a time of its own."""
    if item.standing is not Standing.DEVICE:
        return SKEW_S
    return DEVICE_LAG_S if dated else UNDATED_LAG_S


def _is_before(one: Evidence, other: Evidence) -> bool:
    if one.at_s is not None and other.at_s is not None:
        return one.at_s < other.at_s - SKEW_S
    return one.place.file == other.place.file and one.order < other.order


def _rivals(lead: Evidence, item: Evidence) -> bool:
    """Equally near to the cause, another fault elsewhere, and no telling which was first."""
    if item is lead or item.fault == lead.fault or item.standing != lead.standing:
        return False
    same_place = item.place.file == lead.place.file
    return not same_place and not _is_before(lead, item)


# --- what speaks against, and what was not taken --------------------------------------------------------------------


def _excluded(live: Sequence[Evidence]) -> list[Evidence]:
    return [item for item in live if item.fault and _by_whom(live, item)]


def _by_whom(live: Sequence[Evidence], item: Evidence) -> str:
    """The words that rule the fault out where the item was seen; empty: none do."""
    for other in live:
        near = other.unit.rank == item.unit.rank or other.unit.rank is None or item.unit.rank is None
        if item.fault in other.excludes and other.fault != item.fault and near and other.standing <= item.standing:
            return other.text
    return ""


def _rejected(lead: Evidence, item: Evidence) -> Rejected:
    if _is_before(lead, item):
        by = "" if lead.at_s is None or item.at_s is None else f" by {item.at_s - lead.at_s:.1f} s"
        reason = f"it came later{by}"
    elif item.standing > lead.standing:
        reason = f"{_NEARNESS[item.standing]} says less than {_NEARNESS[lead.standing]}"
    else:
        reason = "nothing tells which was first, and the other is said more clearly"
    return Rejected(fault=item.fault, unit=item.unit, reason=reason)


_NEARNESS: Final = {
    Standing.DEVICE: "the device or kernel",
    Standing.SPECIFIC: "an error with a name",
    Standing.GENERAL: "an error of no particular kind",
    Standing.ENDING: "an exit code or signal",
    Standing.SYMPTOM: "a symptom that many faults have",
}


def _not_out_of_memory(lead: Evidence, *, kernel_read: bool) -> tuple[Rejected, ...]:
    if lead.fault != faults.KILLED.name:
        return ()
    why = "the kernel log does not name it" if kernel_read else "no kernel log was given that could name it"
    reason = f"anybody can send SIGKILL (exit status 137), and {why}"
    return (Rejected(fault=faults.OOM_KILL.name, unit=lead.unit, reason=reason),)


def _nothing(everything: Sequence[Evidence], live: Sequence[Evidence], ranks: frozenset[int]) -> Verdict:
    victims = [item for item in live if item.standing is Standing.VICTIM]
    handled = [item for item in everything if item.fault and _is_past(item, everything)]
    against = [f"{item.unit or item.place} lost a peer and says so: {item.text}" for item in victims[:_PROOF_LINES]]
    rejected = tuple(
        Rejected(
            fault=item.fault,
            unit=item.unit,
            reason="the process went on working after it" if item.went_on else "it passed, and no process failed then",
        )
        for item in handled
    )
    found = unknown(against=tuple(against), rejected=rejected[:_REJECTED_MAX], proof=tuple(victims[:1]))
    return replace(found, culprit=only_silent(live, ranks)) if victims else found


# --- how sure, and what else it tells -------------------------------------------------------------------------------


def _confidence(lead: Evidence, live: Sequence[Evidence], rivals: Sequence[Evidence]) -> float:
    doubt = 1.0 - lead.weight
    second = {item.source: item.weight for item in live if item.fault == lead.fault and item.source is not lead.source}
    for weight in second.values():
        doubt *= 1.0 - _SECOND_SOURCE * weight
    return min(CONFIDENCE_MAX, 1.0 - doubt - (_RIVALRY if rivals else 0.0))


def _proof(lead: Evidence, live: Sequence[Evidence]) -> tuple[Evidence, ...]:
    others = [item for item in live if item is not lead and (item.fault == lead.fault or _is_about(lead, item))]
    others.sort(key=lambda item: (item.source is lead.source, item.fault != lead.fault, _in_story(item)))
    return (lead, *others[: _PROOF_LINES - 1])


def _is_about(lead: Evidence, item: Evidence) -> bool:
    """The end of the same process, or another who names it."""
    same = lead.unit.rank is not None and item.unit.rank == lead.unit.rank
    return same and (item.standing is Standing.ENDING or item.points)


def _advice(lead: Evidence, live: Sequence[Evidence]) -> str:
    """The device's own word first, then its code's, then the fault's."""
    asked = [item for item in live if item.advice and not item.fault and item.unit.device == lead.unit.device]
    if lead.source is Source.KERNEL and asked:
        return f"{asked[-1].advice}. {lead.advice}".rstrip(". ") + "."
    fault = fault_named(lead.fault)
    told = f"{lead.advice}. " if lead.advice else ""
    place = f" It happened at {lead.where}." if lead.where else ""
    return f"{told}{fault.advice}{place}"


def _with_history(lead: Evidence, everything: Sequence[Evidence], found: Verdict) -> Verdict:
    """What comes back on a node, or again and again on a device, is not gone by itself."""
    earlier = sum(
        item.count
        for item in everything
        if item.source is Source.HISTORY and item.fault == lead.fault and item.unit.node == found.culprit.node != ""
    )
    lasting = found.persistence in (Persistence.TRANSIENT, Persistence.INTERMITTENT)
    if lasting and (earlier >= _VISITS_OF_A_BROKEN_NODE or lead.bursts >= _BURSTS_OF_A_BROKEN_DEVICE):
        return replace(found, persistence=Persistence.PERMANENT)
    if earlier and found.persistence is Persistence.TRANSIENT:
        return replace(found, persistence=Persistence.INTERMITTENT)
    return found


def _of_many_units(lead: Evidence, causes: Sequence[Evidence], found: Verdict) -> Verdict:
    """One code on several devices is the program that all of them ran; hardware fails one at a time."""
    if lead.source is not Source.KERNEL or lead.code is None or not lead.unit.device:
        return found
    devices = {
        (item.unit.node, item.unit.device)
        for item in causes
        if item.source is Source.KERNEL and item.code == lead.code and item.fault == lead.fault
    }
    if len(devices) == 1:
        return found
    told = f"the same code on {len(devices)} devices: hardware fails one at a time, so suspect the software first"
    if lead.standing is Standing.DEVICE:
        return replace(found, against=(*found.against, told))
    fault: Fault = fault_named(lead.fault)
    return replace(
        found,
        persistence=Persistence.DETERMINISTIC,
        scope=Scope.JOB,
        culprit=Unit(),
        advice=f"{told[0].upper()}{told[1:]}. {fault.advice}",
    )
