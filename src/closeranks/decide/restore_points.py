"""Which saved states a new group may begin with, best first."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from closeranks.decide.protocol import Origin


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A generation of the store."""

    generation: int
    step: int
    trusted: bool = True  # False: corruption was suspected when it was taken
    verified: bool = False  # a restore drill has read it
    broken: bool = False  # a restore drill could not


class RestorePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A state that can be tried. At least one of ``in_memory`` and ``generation`` is there."""

    step: int
    in_memory: bool
    generation: int | None


def restore_points(origin: Origin, memory_step: int | None, kept: Iterable[Kept]) -> tuple[RestorePoint, ...]:
    """The points to try, in this order; empty when there is none or none is wanted.

    NEWEST: by step, later generations of a step first; what is in memory saves reading the same step from the store.
    VERIFIED: memory and what is not trusted are left out; drilled generations come before all others.
    """
    if origin is Origin.NOTHING:
        return ()
    usable = [k for k in kept if not k.broken]
    if origin is Origin.VERIFIED:
        trusted = sorted(
            (k for k in usable if k.trusted), key=lambda k: (k.verified, k.step, k.generation), reverse=True
        )
        return tuple(RestorePoint(step=k.step, in_memory=False, generation=k.generation) for k in trusted)
    ordered = sorted(usable, key=lambda k: (k.step, k.generation), reverse=True)
    points = [RestorePoint(step=k.step, in_memory=k.step == memory_step, generation=k.generation) for k in ordered]
    if memory_step is not None and all(k.step != memory_step for k in ordered):
        place = sum(k.step > memory_step for k in ordered)
        points.insert(place, RestorePoint(step=memory_step, in_memory=True, generation=None))
    return tuple(points)
