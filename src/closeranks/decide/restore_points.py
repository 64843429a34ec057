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
    """A state that can be tried, from the nearest of its homes."""

    step: int
    in_memory: bool  # of this node
    generation: int | None  # in the store; None: it was not committed


def restore_points(
    origin: Origin, memory_step: int | None, kept: Iterable[Kept], elsewhere: Iterable[int] = ()
) -> tuple[RestorePoint, ...]:
    """The points to try, in this order; empty when there is none or none is wanted.

    NEWEST: by step, later generations of a step first; what is in memory saves reading the same step from the store.
    ``elsewhere`` are steps that are whole in other homes (memory of peers, local disk), committed or not.
    VERIFIED: what was not committed, or is not trusted, is left out; drilled generations come before all others.
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
    loose = {*elsewhere, *([] if memory_step is None else [memory_step])} - {k.step for k in ordered}
    points += [RestorePoint(step=step, in_memory=step == memory_step, generation=None) for step in loose]
    return tuple(sorted(points, key=lambda point: point.step, reverse=True))
