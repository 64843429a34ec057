"""A verdict in words: the verdict first, then what proves it, what speaks against it, what to do, and the timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from closeranks.diagnose.evidence import Evidence, Standing
from closeranks.diagnose.labels import harmless
from closeranks.diagnose.verdict import Verdict

TIMELINE_MAX: Final = 30
_RANKS_SHOWN: Final = 16


class Told(NamedTuple):
    """A line, free of anything that a terminal would act on, and whether it is a heading."""

    text: str
    heading: bool = False


def tell(verdict: Verdict, evidence: Sequence[Evidence]) -> Iterator[Told]:
    """The lines of the report."""
    sure = f"  (confidence {verdict.confidence:.2f})" if verdict.known else ""
    yield Told(f"VERDICT: {verdict.fault}{sure}", heading=True)
    yield Told(f"  {verdict.summary}")
    if verdict.known:
        yield Told(f"  culprit: {harmless(str(verdict.culprit)) or 'no single one is named'}{_alike(verdict)}")
        yield Told(f"  {verdict.persistence}; {verdict.manifestation}; scope: {verdict.scope}")
    elif verdict.culprit:
        yield Told(
            f"  look at {harmless(str(verdict.culprit))}: the only one that lost no peer and did not wait in vain"
        )
    if verdict.proof:
        yield Told("because" if verdict.known else "heard", heading=True)
        for item in verdict.proof:
            yield Told(f"  {_line(item)}")
    if verdict.against:
        yield Told("against it" if verdict.known else "not enough", heading=True)
        yield from (Told(f"  {harmless(text)}") for text in verdict.against)
    if verdict.rejected:
        yield Told("not taken", heading=True)
        for rejected in verdict.rejected:
            unit = f" ({harmless(str(rejected.unit))})" if rejected.unit else ""
            yield Told(f"  {rejected.fault}{unit}: {harmless(rejected.reason)}")
    yield Told("what to do", heading=True)
    yield Told(f"  {harmless(verdict.advice)}")
    if evidence:
        yield from _timeline(evidence)


def timeline(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The evidence in the order of its story: by time where there is one, else by place."""
    return sorted(evidence, key=lambda item: (item.at_s is None, item.at_s or 0.0, item.order))


def _timeline(evidence: Sequence[Evidence]) -> Iterator[Told]:
    yield Told("timeline", heading=True)
    story = timeline(evidence)
    for item in story[:TIMELINE_MAX]:
        when = (
            "no time     " if item.at_s is None else datetime.fromtimestamp(item.at_s, UTC).strftime("%H:%M:%S.%f")[:-3]
        )
        what = item.fault or ("lost a peer" if item.standing is Standing.VICTIM else item.rule)
        handled = ", handled" if item.went_on else ", passed" if item.over else ""
        yield Told(f"  {when}  {what}{handled}: {_line(item)}")
    if len(story) > TIMELINE_MAX:
        yield Told(f"  and {len(story) - TIMELINE_MAX} more; --json has them all")


def _line(item: Evidence) -> str:
    unit = f" [{item.unit}]" if item.unit else ""
    count = f" ({item.count} lines)" if item.count > 1 else ""
    bursts = f" in {item.bursts} bursts" if item.bursts > 1 else ""
    return harmless(f"{item.place}{unit}: {item.text}{count}{bursts}")


def _alike(verdict: Verdict) -> str:
    if len(verdict.alike) < 2:  # noqa: PLR2004 - the one that is named already
        return ""
    shown = ", ".join(map(str, verdict.alike[:_RANKS_SHOWN]))
    more = f" and {len(verdict.alike) - _RANKS_SHOWN} more" if len(verdict.alike) > _RANKS_SHOWN else ""
    return f"; the same on ranks {shown}{more}"
