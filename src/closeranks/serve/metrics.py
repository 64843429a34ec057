"""Metrics in the form that Prometheus reads. Names and labels are a promise: dashboards and alerts use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from closeranks.serve.story import Story
from closeranks.serve.words import Kind, Outcome

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_WHOLE, _PART, _NOTHING = "whole", "part", "nothing"


class Now(Collector):
    """Gauges: what is true at the moment of asking."""

    def __init__(self, gauges: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """One family a name; see ``Gateway.gauges`` for what there is."""
        families: dict[str, GaugeMetricFamily] = {}
        for name, text, labels, value in self._gauges():
            if name not in families:
                families[name] = GaugeMetricFamily(f"closeranks_serve_{name}", text, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        return families.values()


class Metrics:
    """See Observer."""

    def __init__(self, gauges: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "closeranks_serve_requests", "Requests by status and by how much of the answer arrived.",
            ["status", "arrived", "level"], registry=registry,
        )  # fmt: skip
        self._shed = Counter(
            "closeranks_serve_shed", "Requests that were turned away early, by status.", ["status"], registry=registry
        )
        self._took = Histogram(
            "closeranks_serve_request_seconds", "From the request to the last byte of its answer.", ["level"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._first = Histogram(
            "closeranks_serve_first_byte_seconds", "From the request to the first byte of its answer.", ["level"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._visits = Counter(
            "closeranks_serve_attempts", "Attempts at replicas, by what they were for and how they ended.",
            ["replica", "kind", "outcome"], registry=registry,
        )  # fmt: skip
        self._resumed = Counter(
            "closeranks_serve_resumed", "Answers that went on at another replica, by how exact that is.", ["exactness"],
            registry=registry,
        )  # fmt: skip
        registry.register(Now(gauges))

    def ended(self, story: Story) -> None:
        """See Observer."""
        arrived = _WHOLE if story.whole else _PART if story.first_byte_s else _NOTHING
        level = str(story.level)
        self._requests.labels(str(story.status), arrived, level).inc()
        if story.shed:
            self._shed.labels(str(story.status)).inc()
        else:
            self._took.labels(level).observe(story.took_s)
        if story.first_byte_s:
            self._first.labels(level).observe(story.first_byte_s)
        for visit in story.visits:
            self._visits.labels(visit.replica, visit.kind, visit.outcome or Outcome.GONE).inc()
            if visit.kind is Kind.RESUME and visit.outcome is Outcome.OK:
                self._resumed.labels(story.exactness).inc()

    def text(self) -> bytes:
        """What a scrape gets."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """See Observer."""
