"""Draws what goes wrong: every source has a stream of its own, so that policies meet the same faults."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.simulate.scenario import Scenario, Source
from closeranks.simulate.strikes import Kind, Strike

if TYPE_CHECKING:
    from numpy.random import Generator

    from closeranks.plan.trace import Trace

_MARGIN: Final = 6.0  # standard deviations of a count that are drawn in one go
_MANY: Final = 16


def draw(scenario: Scenario, seed: int, spares: int) -> list[Strike]:
    """The faults of one replica, in order of time.

    Where the rates rest on a count of failures, each replica draws its rate from what that count leaves open.

    Source: superposition of renewal processes; gamma posterior of a Poisson rate under Jeffreys' prior.
    """
    scale = 1.0
    if scenario.counted:
        rng = np.random.default_rng([seed, 0])
        scale = float(rng.gamma(scenario.counted + 0.5) / scenario.counted)
    found: list[Strike] = []
    for number, source in enumerate(scenario.sources, start=1):
        found += _of_source(scenario, source, np.random.default_rng([seed, number]), scale, spares)
    return sorted(found, key=lambda strike: strike.at_s)


def _of_source(scenario: Scenario, source: Source, rng: Generator, scale: float, spares: int) -> list[Strike]:
    hits_nodes = source.kind in (Kind.NODE, Kind.DOMAIN)
    # Spare nodes fail like all others, so there is more to fail than the job has; they come last in the numbering.
    total = scenario.nodes + (spares if hits_nodes else 0)
    per_s = source.per_s * scale * (total / scenario.nodes if hits_nodes and source.nodes_each < scenario.nodes else 1)
    shape = scenario.law_shape if source.kind is Kind.NODE else 1.0
    times_s = _times(rng, per_s, scenario.horizon_s, shape)
    lasts_s = _durations(scenario, source, rng, times_s.size)
    groups = max(1, math.ceil(total / source.nodes_each))
    group = rng.integers(0, groups, times_s.size)
    each = source.nodes_each
    return [
        Strike(
            at_s=at_s,
            kind=source.kind,
            seat=where,
            nodes=tuple(range(where * each, min((where + 1) * each, total)))
            if hits_nodes or source.kind is Kind.SPOT
            else (),
            lasts_s=length_s,
            factor=source.factor,
            notice_s=source.notice_s,
        )
        for at_s, where, length_s in zip(times_s.tolist(), group.tolist(), lasts_s.tolist(), strict=True)
    ]


def _times(rng: Generator, per_s: float, horizon_s: float, shape: float) -> NDArray[np.float64]:
    mean = per_s * horizon_s
    size = math.ceil(mean + _MARGIN * math.sqrt(mean * (1 if shape >= 1 else 1 / shape**2)) + _MANY)
    unit = 1 / (per_s * math.gamma(1 + 1 / shape))
    times_s = np.cumsum(unit * rng.weibull(shape, size))
    while times_s[-1] < horizon_s:
        times_s = np.concatenate([times_s, times_s[-1] + np.cumsum(unit * rng.weibull(shape, size))])
    kept: NDArray[np.float64] = times_s[times_s < horizon_s]
    return kept


def _durations(scenario: Scenario, source: Source, rng: Generator, size: int) -> NDArray[np.float64]:
    if not source.spread:
        return np.full(size, source.lasts_s)
    if scenario.repair_sigma:
        sigma = scenario.repair_sigma
        return rng.lognormal(math.log(source.lasts_s) - sigma**2 / 2, sigma, size)
    return rng.exponential(source.lasts_s, size)


def replay(trace: Trace, nodes: int, horizon_s: float, repair_s: float) -> list[Strike]:
    """The failures of a trace on the nodes of a job, from its first one on; those without an end take ``repair_s``.

    Units keep their identity: each is a node, in the order in which they first fail, around again when there are more.
    """
    records = sorted(trace.records, key=lambda record: record.start_utc_s)
    begin_s = records[0].start_utc_s if records else 0.0
    numbers: dict[str, int] = {}
    found = []
    for record in records:
        node = numbers.setdefault(record.unit, len(numbers)) % nodes
        at_s = record.start_utc_s - begin_s
        lasts_s = repair_s if record.end_utc_s is None else max(0.0, record.end_utc_s - record.start_utc_s)
        if at_s < horizon_s:
            found.append(Strike(at_s=at_s, kind=Kind.NODE, seat=node, nodes=(node,), lasts_s=lasts_s))
    return found
