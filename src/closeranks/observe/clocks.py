"""One time for the journals of several nodes: job time, the monotonic clock of one of them.

Monotonic clocks of two nodes have nothing in common, and wall clocks may be wrong by hours. But a decision is stamped
with the coordinator's clock and written by every node that it reaches, by the node's clock. Their difference is the
offset between both clocks plus the way of the message, so the smallest differences tell the offset, and with it no node
hears of a decision before it was made. Only a journal that shares no decision with any other is placed by wall time.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from closeranks.events import Record

DRIFT_MAX: Final = 5e-4  # of two clocks against each other; what the kernel slews at most


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """From one monotonic clock to job time; between two of its points the offset changes evenly."""

    at_s: tuple[float, ...]  # rising, by this clock
    offsets_s: tuple[float, ...]  # job time less this clock

    def job_s(self, mono_s: float) -> float:
        """The instant in job time. Grows with ``mono_s``."""
        after = bisect.bisect_right(self.at_s, mono_s)
        if after == 0:
            return mono_s + self.offsets_s[0]
        if after == len(self.at_s):
            return mono_s + self.offsets_s[-1]
        (low_s, high_s), (low, high) = self.at_s[after - 1 : after + 1], self.offsets_s[after - 1 : after + 1]
        return mono_s + low + (high - low) * (mono_s - low_s) / (high_s - low_s)


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """The clocks of a job's journals, in the order of the journals, and those of its coordinators by epoch."""

    journals: tuple[Clock, ...]
    epochs: dict[int, Clock]
    by_wall: tuple[bool, ...]  # by journal: placed by wall time, for want of shared decisions
    wall_s: float  # wall time of the reference less job time


class _Sight(NamedTuple):
    """One decision in one journal: when it was made and when it was written, each by its own clock."""

    journal: int
    epoch: int
    made_s: float
    written_s: float


def clocks_of(journals: Sequence[Sequence[Record]]) -> Clocks:
    """Find the clocks. Each journal holds at least one record; job time is that of the one with most decisions."""
    sights = [
        _Sight(number, record.stamp.epoch, record.stamp.at_mono_s, record.mono_s)
        for number, records in enumerate(journals)
        for record in records
        if record.stamp is not None
    ]
    walls_s = [statistics.median(record.wall_s - record.mono_s for record in records) for records in journals]
    counts = [sum(sight.journal == number for sight in sights) for number in range(len(journals))]
    reference = counts.index(max(counts))
    found, epochs = {reference: _fixed(0.0)}, dict[int, Clock]()
    by_wall: set[int] = set()
    while len(found) < len(journals) or not epochs.keys() >= {sight.epoch for sight in sights}:
        if not _spread(sights, found, epochs):
            lonely = next(number for number in range(len(journals)) if number not in found)
            found[lonely] = _fixed(walls_s[lonely] - walls_s[reference])
            by_wall.add(lonely)
    return Clocks(
        journals=tuple(found[number] for number in range(len(journals))),
        epochs=epochs,
        by_wall=tuple(number in by_wall for number in range(len(journals))),
        wall_s=walls_s[reference],
    )


def _spread(sights: Sequence[_Sight], journals: dict[int, Clock], epochs: dict[int, Clock]) -> bool:
    """Place the clocks that share decisions with a placed one; whether there was any."""
    new_epochs = {sight.epoch for sight in sights if sight.journal in journals} - epochs.keys()
    for epoch in new_epochs:
        made = [s for s in sights if s.epoch == epoch and s.journal in journals]
        lags = [(s.made_s, journals[s.journal].job_s(s.written_s) - s.made_s) for s in made]
        epochs[epoch] = _clock(_lowest(lags))
    new_journals = {sight.journal for sight in sights if sight.epoch in epochs} - journals.keys()
    for journal in new_journals:
        written = [s for s in sights if s.journal == journal and s.epoch in epochs]
        lags = [(s.written_s, s.written_s - epochs[s.epoch].job_s(s.made_s)) for s in written]
        journals[journal] = _clock((at_s, -lag_s) for at_s, lag_s in _lowest(lags))
    return bool(new_epochs or new_journals)


def _lowest(lags: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other shows to be late: between any two of them the clocks drift as clocks can."""
    points = sorted(lags)
    kept = _not_late(_not_late(points)[::-1])
    return kept[::-1]


def _not_late(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that are not above what the lowest one before them allows."""
    kept: list[tuple[float, float]] = []
    for at_s, lag_s in points:
        if not kept or lag_s <= kept[-1][1] + DRIFT_MAX * abs(at_s - kept[-1][0]):
            kept.append((at_s, lag_s))
    return kept


def _clock(points: Iterable[tuple[float, float]]) -> Clock:
    offsets_s = dict(points)
    return Clock(at_s=tuple(offsets_s), offsets_s=tuple(offsets_s.values()))


def _fixed(offset_s: float) -> Clock:
    return Clock(at_s=(0.0,), offsets_s=(offset_s,))
