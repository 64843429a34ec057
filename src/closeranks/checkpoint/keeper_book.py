"""Which saves a keeper owes a report for: no clock, no thread, no I/O.

Every save taken gets exactly one final report (Committed, Kept, SaveLost) and exactly one Freed, whatever its tiers do.
A tier that is slow keeps the arenas of one save at most: a second one that only such tiers still read is taken from
them after a while, so that the durable tier always finds an arena.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from closeranks.checkpoint.keeper_messages import (
    Freed,
    FromKeeper,
    Kept,
    Publish,
    SaveLost,
    TierMissed,
)
from closeranks.checkpoint.tiers import DURABLE


class Outcome(NamedTuple):
    """What follows from an event: reports to send, and (save, tier) pairs whose work is to be given up."""

    reports: tuple[FromKeeper, ...] = ()
    given_up: tuple[tuple[int, str], ...] = ()


class _Save:
    def __init__(self, publish: Publish, tiers: tuple[str, ...], now_s: float) -> None:
        self.publish = publish
        self.durable = DURABLE in tiers
        self.since_s = now_s
        self.deadline_s = now_s + publish.deadline_s
        self.working = set(tiers)
        self.reading = set(tiers)
        self.only_others_s: float | None = None  # since when it is the second one that only slow tiers hold
        self.final = False
        self.freed = False


class Book:
    """The saves in work. Unknown or ended ones are ignored: a tier may finish what was given up meanwhile."""

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s  # how long a second save may be held by tiers other than the durable one
        self._saves: dict[int, _Save] = {}

    def __len__(self) -> int:
        return len(self._saves)

    def take(self, publish: Publish, tiers: tuple[str, ...], now_s: float) -> Outcome:
        """A save begins."""
        save = self._saves[publish.save] = _Save(publish, tiers, now_s)
        return self._settled(save, [], [], now_s)

    def holds(self, number: int) -> Publish | None:
        """The save if the arenas are still its own, so that a seal may be put on them."""
        save = self._saves.get(number)
        return None if save is None or save.freed else save.publish

    def has_read(self, number: int, tier: str, now_s: float) -> Outcome:
        """The tier has no more need of the arenas."""
        save = self._saves.get(number)
        if save is None or tier not in save.reading:
            return Outcome()
        save.reading.discard(tier)
        return self._settled(save, [], [], now_s)

    def __contains__(self, number: int) -> bool:
        return number in self._saves

    def ended(self, number: int, tier: str, report: FromKeeper | None, now_s: float) -> Outcome:
        """The tier is done with the save; ``report`` says how: Committed, SaveLost, TierKept, TierMissed or None."""
        save = self._saves.get(number)
        if save is None or tier not in save.working:
            return Outcome()
        save.working.discard(tier)
        save.reading.discard(tier)
        save.final = save.final or tier == DURABLE
        return self._settled(save, [] if report is None else [report], [], now_s)

    def next_s(self) -> float | None:
        """When ``expire`` has something to do."""
        times = [save.deadline_s for save in self._saves.values()]
        times += [save.only_others_s + self._lag_s for save in self._saves.values() if save.only_others_s is not None]
        return min(times) if times else None

    def expire(self, now_s: float) -> Outcome:
        """Give up what is over its deadline, and saves that slow tiers hold while they still hold an older one."""
        reports: list[FromKeeper] = []
        given_up: list[tuple[int, str]] = []
        for save in list(self._saves.values()):
            if now_s >= save.deadline_s:
                outcome = self._give_up(save, f"not done {save.publish.deadline_s:g} s after it was published", now_s)
            elif save.only_others_s is not None and now_s >= save.only_others_s + self._lag_s:
                outcome = self._give_up(save, "still busy with an older save; this one was let go", now_s)
            else:
                continue
            reports += outcome.reports
            given_up += outcome.given_up
        return Outcome(tuple(reports), tuple(given_up))

    def give_up(self, number: int, problem: str, now_s: float) -> Outcome:
        """End one save now."""
        save = self._saves.get(number)
        return Outcome() if save is None else self._give_up(save, problem, now_s)

    def give_up_all(self, problem: str, now_s: float) -> Outcome:
        """End every save now."""
        outcomes = [self._give_up(save, problem, now_s) for save in list(self._saves.values())]
        return Outcome(
            tuple(report for outcome in outcomes for report in outcome.reports),
            tuple(pair for outcome in outcomes for pair in outcome.given_up),
        )

    def _give_up(self, save: _Save, problem: str, now_s: float) -> Outcome:
        given_up = [(save.publish.save, tier) for tier in sorted(save.working)]
        reports: list[FromKeeper] = [lost(save.publish, tier, problem) for tier in sorted(save.working)]
        save.final = save.final or DURABLE in save.working
        save.working.clear()
        save.reading.clear()
        return self._settled(save, reports, given_up, now_s)

    def _settled(
        self, save: _Save, reports: list[FromKeeper], given_up: list[tuple[int, str]], now_s: float
    ) -> Outcome:
        number, step = save.publish.save, save.publish.step
        if not save.reading and not save.freed:
            save.freed = True
            reports.append(Freed(save=number))
        if not save.working:
            if not save.final:  # the durable tier was not asked
                reports.append(Kept(save=number, step=step, seconds={"total": now_s - save.since_s}))
            del self._saves[number]
        self._note_lag(now_s)
        return Outcome(tuple(reports), tuple(given_up))

    def _note_lag(self, now_s: float) -> None:
        held = list(self._held_by_others())
        for save in self._saves.values():
            second = save in held[1:]
            if not second:
                save.only_others_s = None
            elif save.only_others_s is None:
                save.only_others_s = now_s

    def _held_by_others(self) -> Iterator[_Save]:
        return (save for save in self._saves.values() if save.reading and DURABLE not in save.reading)


def lost(publish: Publish, tier: str, problem: str) -> SaveLost | TierMissed:
    """The report of a tier that did not get the save."""
    kind = SaveLost if tier == DURABLE else TierMissed
    return kind(save=publish.save, step=publish.step, tier=tier, problem=problem)
