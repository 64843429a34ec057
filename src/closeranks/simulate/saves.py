"""Saves of a virtual run: which state is where, what a loss leaves of it, and what a new group goes on with."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from closeranks.decide.protocol import Origin
from closeranks.decide.restore_points import Kept, restore_points
from closeranks.simulate.stretch import Stretch
from closeranks.simulate.strikes import WIDTH, Scope


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One home of saved state. ``survives``: the largest loss that leaves it readable."""

    name: str = "store"
    every: int = 1  # it gets every so-manieth snapshot
    write_s: float = 0.0  # from the end of the pause until it is durable there
    read_s: float = 0.0  # beyond the load of a recovery
    survives: Scope = Scope.JOB
    keep: int = 6

    def __post_init__(self) -> None:
        """Refuse a home that cannot be."""
        if self.every < 1 or self.keep < 1 or not (self.write_s >= 0 and self.read_s >= 0):
            raise ValueError(
                f"tier {self.name!r}: expected every >= 1, keep >= 1 and times >= 0, got every {self.every}, "
                f"keep {self.keep}, write_s {self.write_s:g}, read_s {self.read_s:g}; leave out what you do not need"
            )


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """State after a step, in one tier."""

    step: int
    taken_s: float  # when that state was current
    durable_s: float


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a new group goes on with; step -1 is the beginning."""

    step: int
    taken_s: float
    tier: str = ""
    read_s: float = 0.0


class Saves:
    """What is kept, by tier. A stretch adds its saves when it is asked up to which time it went."""

    def __init__(self, tiers: Iterable[Tier]) -> None:
        self.tiers = tuple(tiers)
        self._kept: dict[str, list[Saved]] = {tier.name: [] for tier in self.tiers}
        self._flying: dict[str, list[Saved]] = {tier.name: [] for tier in self.tiers}
        self.taken = 0  # snapshots so far

    def newest(self) -> Saved | None:
        """The newest state of any tier."""
        return max((saved for kept in self._kept.values() for saved in kept), key=lambda s: s.step, default=None)

    def cover(self, stretch: Stretch, now_s: float, *, store_factor: float, lost: bool) -> None:
        """Take over what a stretch that ends now has saved.

        ``store_factor``: how many times the usual a write into the store took; infinite where none succeeded.
        ``lost``: a fault ended it, and what was still being written is gone.
        """
        done = stretch.saves(stretch.closed_by(now_s))
        if done and stretch.opened_s(_within(stretch, done)) > now_s:
            done -= 1  # its pause is not over
        for tier in self.tiers:
            factor = store_factor if tier.survives is Scope.JOB else 1.0
            self._land(tier, now_s)
            if not math.isinf(factor):
                self._add(tier, stretch, done, tier.write_s * factor)
            self._land(tier, now_s)
            if lost:
                self._flying[tier.name].clear()
        self.taken += done

    def note(self, step: int, at_s: float) -> None:
        """A save out of turn, before a reclaim that was announced."""
        for tier in self.tiers:
            self._kept[tier.name].append(Saved(step=step, taken_s=at_s, durable_s=at_s))

    def _add(self, tier: Tier, stretch: Stretch, done: int, write_s: float) -> None:
        first = tier.every - self.taken % tier.every  # number in the stretch of the tier's next snapshot
        numbers = range(first, done + 1, tier.every)
        for number in numbers[-(tier.keep + 1 + int(write_s // max(stretch.every * stretch.step_s, 1e-9))) :]:
            count = _within(stretch, number)
            taken_s = stretch.closed_s(count)
            durable_s = stretch.opened_s(count) + write_s
            self._flying[tier.name].append(Saved(step=stretch.save_step(number), taken_s=taken_s, durable_s=durable_s))

    def _land(self, tier: Tier, now_s: float) -> None:
        flying = self._flying[tier.name]
        if not flying:
            return
        kept = [*self._kept[tier.name], *(saved for saved in flying if saved.durable_s <= now_s)]
        self._kept[tier.name] = kept[-tier.keep :]
        self._flying[tier.name] = [saved for saved in flying if saved.durable_s > now_s]

    def lose(self, scope: Scope) -> None:
        """A loss of that scope: tiers that do not survive it hold nothing any more."""
        for tier in self.tiers:
            if WIDTH[tier.survives] < WIDTH[scope]:
                self._kept[tier.name].clear()
                self._flying[tier.name].clear()

    def restore(self, origin: Origin, trusted_before_s: float) -> Restored:
        """The state that a new group begins with, as ``decide.restore_points`` orders what there is.

        States newer than that one are given up: they belong to a past that will not be.
        """
        near = [t for t in self.tiers if t.survives is Scope.PROCESS]
        store = [t for t in self.tiers if t.survives is Scope.JOB]
        between = [t for t in self.tiers if t not in near and t not in store]
        kept = [
            Kept(generation=number, step=saved.step, trusted=saved.taken_s < trusted_before_s)
            for tier in store
            for number, saved in enumerate(self._kept[tier.name], start=1)
        ]
        memory = max((s.step for t in near for s in self._kept[t.name]), default=None)
        elsewhere = [s.step for t in between for s in self._kept[t.name]]
        points = restore_points(origin, memory, kept, elsewhere)
        if not points:
            self._give_up_after(-1)
            return Restored(step=-1, taken_s=0.0)
        step, in_store = points[0].step, origin is Origin.VERIFIED
        holders = [
            (tier, saved)
            for tier in (store if in_store else self.tiers)
            for saved in self._kept[tier.name]
            if saved.step == step
        ]
        tier, saved = min(holders, key=lambda holder: holder[0].read_s)
        self._give_up_after(step)
        return Restored(step=step, taken_s=saved.taken_s, tier=tier.name, read_s=tier.read_s)

    def _give_up_after(self, step: int) -> None:
        for kept in self._kept.values():
            kept[:] = [saved for saved in kept if saved.step <= step]


def _within(stretch: Stretch, number: int) -> int:
    """The number within the stretch of the step after which that save is taken."""
    return stretch.save_step(number) - stretch.after
