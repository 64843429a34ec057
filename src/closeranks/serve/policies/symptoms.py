"""From symptoms to first actions, as data. Pure.

Each symptom is a few readings compared with their usual values, and what to do first: what the gateway does by
itself, and what a person should look at. The first action is always one that can be taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec


class Sign(msgspec.Struct, frozen=True):
    """One reading: above or below a bound, or a multiple of its usual value."""

    reading: str
    relation: Literal["above", "below", "times usual"]
    bound: float

    def shows(self, readings: Mapping[str, float], usual: Mapping[str, float]) -> bool:
        """Whether it is there. A reading that is missing shows nothing."""
        value = readings.get(self.reading)
        if value is None:
            return False
        if self.relation == "above":
            return value > self.bound
        if self.relation == "below":
            return value < self.bound
        normal = usual.get(self.reading)
        return normal is not None and normal > 0 and value > self.bound * normal


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is seen, and what to do about it first."""

    name: str
    signs: tuple[Sign, ...]  # all of them
    first: str  # what the gateway does
    then: str  # what a person looks at


SYMPTOMS: Final = (
    Symptom(
        name="cascade",
        signs=(
            Sign("dependency_s", "times usual", 5.0),
            Sign("p99_s", "times usual", 5.0),
            Sign("error_rate", "above", 0.05),
        ),
        first="open the dependency's breaker; answer with default features; stop retries towards it",
        then="what floods the dependency: a cache that went away? Let it recover before the breaker closes",
    ),
    Symptom(
        name="latency spike",
        signs=(Sign("p99_s", "times usual", 3.0), Sign("error_rate", "below", 0.05)),
        first="lower the concurrency limit; shed batch; one level down the ladder when it lasts",
        then="queue or work? Compare waiting with first-byte times, by replica and by length of prompt",
    ),
    Symptom(
        name="rising errors",
        signs=(Sign("error_rate", "above", 0.05),),
        first="open the breakers of the replicas that fail; retry elsewhere within the budget",
        then="one replica or all? One: its node. All: the last deployment, or what all of them depend on",
    ),
    Symptom(
        name="silent quality loss",
        signs=(Sign("wrong_answers", "above", 0.0),),
        first="quarantine the replica whose known answer or vote differs; execute more requests twice",
        then="its memory and its weights: compare digests; keep it out until known answers are right again",
    ),
    Symptom(
        name="degraded service",
        signs=(Sign("degraded_share", "above", 0.5),),
        first="keep the level; go on trying the way up, one request at a time",
        then="which trigger holds the ladder down; how much worse its answers are (the measured difference)",
    ),
)


def recognise(readings: Mapping[str, float], usual: Mapping[str, float]) -> tuple[Symptom, ...]:
    """The symptoms that are there, the most urgent first."""
    return tuple(symptom for symptom in SYMPTOMS if all(sign.shows(readings, usual) for sign in symptom.signs))
