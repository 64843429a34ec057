"""Follows who keeps whom waiting: closed steps of all processes in, records for the journal out.

One node's supervisor and the coordinator of several use the same; they differ in where the numbers come from.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Final

from closeranks.detect import straggler
from closeranks.detect.straggler import Eased, Slack, Slow, Step
from closeranks.detect.straggler_cause import Place, explain, shared
from closeranks.events import AnyEvent, NetworkSlow, StragglerEased, StragglerNamed
from closeranks.plan.straggler import break_even_s

_REPLACEMENT_S: Final = 60.0  # of the whole job, until this run has recovered once


class Stragglers:
    """The detector's memory, and what a replacement costs this job."""

    def __init__(self) -> None:
        self._watch = straggler.Watch()
        self._recoveries_s: list[float] = []

    def disturbed(self) -> None:
        """A new membership, or a recovery: the steps around it tell nothing."""
        self._watch = straggler.disturbed(self._watch)

    def recovered(self, first_step_s: float | None) -> None:
        """A recovery took so long: a replacement will."""
        if first_step_s is not None:
            self._recoveries_s.append(first_step_s)

    def closed(self, number: int, step: Step, places: Mapping[int, Place]) -> tuple[AnyEvent, ...]:
        """A step was closed everywhere; ``places`` are those of its processes."""
        self._watch, findings = straggler.observe(self._watch, step)
        return tuple(self._record(number, finding, places) for finding in findings if _seated(finding, places))

    def _record(self, step: int, finding: straggler.Finding, places: Mapping[int, Place]) -> AnyEvent:
        match finding:
            case Slow():
                return self._named(step, finding, places)
            case Eased():
                seats = tuple(sorted(places[proc].seat for proc in finding.procs if proc in places))
                return StragglerEased(step=step, seats=seats)
            case Slack():
                return NetworkSlow(step=step, apart_s=finding.apart_s, usual_s=finding.usual_s)

    def _named(self, step: int, found: Slow, places: Mapping[int, Place]) -> StragglerNamed:
        slow = frozenset(proc for proc in found.slower if proc in places)
        slower = statistics.median(found.slower[proc] for proc in slow)
        together, why = shared(slow, places), explain(found)
        cost_s = statistics.median(self._recoveries_s) if self._recoveries_s else _REPLACEMENT_S
        pays_s = break_even_s(1 / (1 + slower), cost_s)
        measured = "as recoveries took here" if self._recoveries_s else "assumed"
        return StragglerNamed(
            step=step,
            seats=tuple(sorted(places[proc].seat for proc in slow)),
            scope=together.scope,
            where=together.where,
            cause=why.cause.value,
            slower=slower,
            z=min(found.z, 1e9),
            break_even_s=pays_s,
            reason=f"{why.evidence}; a replacement ({cost_s:.3g} s, {measured}) pays after {pays_s:.3g} s of this",
        )


def _seated(finding: straggler.Finding, places: Mapping[int, Place]) -> bool:
    procs = finding.slower if isinstance(finding, Slow) else finding.procs if isinstance(finding, Eased) else None
    return procs is None or any(proc in places for proc in procs)
