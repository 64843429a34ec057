"""The verdict: one fault, its culprit, how sure that is, and what speaks for and against it."""

from __future__ import annotations

import msgspec

from closeranks import faults
from closeranks.diagnose.evidence import Evidence, Unit
from closeranks.faults import Manifestation, Persistence, Scope

SCHEMA = 1  # of the JSON form; grows when a field changes its meaning or goes


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """Another fault that something spoke for, and why it is not the verdict."""

    fault: str
    unit: Unit
    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, who did it, what to do. ``fault`` is ``unknown`` when the evidence does not carry a name."""

    fault: str
    persistence: Persistence
    manifestation: Manifestation
    scope: Scope
    confidence: float
    culprit: Unit
    alike: tuple[int, ...] = ()  # ranks that show the same; nobody is the culprit when all do
    summary: str
    advice: str
    proof: tuple[Evidence, ...] = ()  # the lines that prove it, the best first
    against: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    @property
    def known(self) -> bool:
        """Whether a fault is named."""
        return self.fault != faults.UNKNOWN.name


def unknown(
    against: tuple[str, ...] = (), rejected: tuple[Rejected, ...] = (), proof: tuple[Evidence, ...] = ()
) -> Verdict:
    """Nothing is named, and why: a good answer where a wrong name would cost more than none."""
    fault = faults.UNKNOWN
    return Verdict(
        fault=fault.name,
        persistence=fault.persistence,
        manifestation=fault.manifestation,
        scope=fault.scope,
        confidence=0.0,
        culprit=Unit(),
        summary=fault.summary,
        advice="Give the logs of all ranks, the kernel log of the nodes and the recordings of collectives.",
        against=against,
        rejected=rejected,
        proof=proof,
    )
