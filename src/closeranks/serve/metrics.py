"""Metrics in the form that Prometheus reads. Names and labels are a promise: dashboards and alerts use them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from closeranks.serve.story import Story
from closeranks.serve.words import Kind, Outcome

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_BOUNDS: Final[list[str]] = [floatToGoString(bound) for bound in (*_SECONDS, float("inf"))]  # type: ignore[no-untyped-call]
_RESUME: Final = Kind.RESUME  # on Python 3.11 a member of an Enum is found by calling a function
_GONE: Final = Outcome.GONE
_WHOLE, _PART, _NOTHING = "whole", "part", "nothing"


class Now(Collector):
    """Gauges: what is true at the moment of asking."""

    def __init__(self, gauges: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """One family a name; see ``Gateway.gauges`` for what there is."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, text, labels, value in self._gauges():
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(f"closeranks_serve_{name}", text, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        return families.values()


class _Times:
    """Durations by the buckets that they are in. Every request adds to two of these, without a call."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.sum_s = 0.0

    def buckets(self) -> list[tuple[str, float]]:
        return list(zip(_BOUNDS, accumulate(self.counts), strict=True))


class _Level:
    """The durations of one level of the ladder."""

    __slots__ = ("first", "took")

    def __init__(self) -> None:
        self.took, self.first = _Times(), _Times()


class _Row:
    """Requests that ended alike."""

    __slots__ = ("count", "first", "took")

    def __init__(self, times: _Level) -> None:
        self.count, self.took, self.first = 0, times.took, times.first


class Metrics(Collector):
    """See Observer. Counts in slots of its own, without a lock: one thread counts, and the same one is asked."""

    def __init__(self, gauges: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        self._since_s = time.time()
        self._rows: dict[tuple[int, str, int], _Row] = {}
        self._levels: dict[int, _Level] = {}
        self._shed: dict[tuple[str, ...], int] = {}
        self._visits: dict[tuple[str, ...], int] = {}
        self._resumed: dict[tuple[str, ...], int] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._registry.register(Now(gauges))

    def ended(self, story: Story) -> None:
        """See Observer."""
        first_s = story.first_byte_s
        key = story.status, _WHOLE if story.whole else _PART if first_s else _NOTHING, story.level
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(self._levels.setdefault(story.level, _Level()))
        row.count += 1
        if story.shed:
            shed = (str(story.status),)
            self._shed[shed] = self._shed.get(shed, 0) + 1
        else:
            took, took_s = row.took, story.ended_s - story.began_s
            took.counts[bisect_left(_SECONDS, took_s)] += 1
            took.sum_s += took_s
        if first_s:
            first = row.first
            first.counts[bisect_left(_SECONDS, first_s)] += 1
            first.sum_s += first_s
        visits = self._visits
        for visit in story.visits:
            how = (visit.replica, visit.kind, visit.outcome or _GONE)
            visits[how] = visits.get(how, 0) + 1
            if visit.kind is _RESUME and visit.outcome is Outcome.OK:
                self._resumed[story.exactness,] = self._resumed.get((story.exactness,), 0) + 1

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        rows: dict[tuple[str, ...], int] = {
            (str(status), how, str(level)): row.count for (status, how, level), row in self._rows.items()
        }
        about = "Requests by status and by how much of the answer arrived."
        yield self._counted("requests", about, ["status", "arrived", "level"], rows)
        yield self._counted("shed", "Requests that were turned away early, by status.", ["status"], self._shed)
        took = {level: times.took for level, times in self._levels.items()}
        yield _timed("request_seconds", "From the request to the last byte of its answer.", took)
        first = {level: times.first for level, times in self._levels.items()}
        yield _timed("first_byte_seconds", "From the request to the first byte of its answer.", first)
        about = "Attempts at replicas, by what they were for and how they ended."
        yield self._counted("attempts", about, ["replica", "kind", "outcome"], self._visits)
        about = "Answers that went on at another replica, by how exact that is."
        yield self._counted("resumed", about, ["exactness"], self._resumed)

    def _counted(self, name: str, about: str, labels: list[str], counts: Mapping[tuple[str, ...], int]) -> Metric:
        family = CounterMetricFamily(f"closeranks_serve_{name}", about, labels=labels)
        for values, count in counts.items():
            family.add_metric(values, count, created=self._since_s)
        return family

    def text(self) -> bytes:
        """What a scrape gets."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """See Observer."""


def _timed(name: str, about: str, by_level: Mapping[int, _Times]) -> Metric:
    family = HistogramMetricFamily(f"closeranks_serve_{name}", about, labels=["level"])
    for level, times in by_level.items():
        family.add_metric([str(level)], times.buckets(), times.sum_s)
    return family
