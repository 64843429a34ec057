"""Correlated failures: a shared domain that breaks is one event for the job and many losses for the spares."""

from __future__ import annotations

from math import exp

import msgspec

from closeranks.plan.checks import PlanInputError, not_negative, positive

HOURS_PER_DAY = 24.0


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """A group of nodes with a common fate: a node itself, a rack, a power feed, the fabric.

    ``nodes_each`` nodes go down together in each of ``count`` such groups, ``per_day`` times in each group.
    """

    name: str
    nodes_each: float
    count: float
    per_day: float

    def __post_init__(self) -> None:
        """Refuse impossible domains by name."""
        positive(f"domain {self.name!r}: nodes_each", self.nodes_each)
        positive(f"domain {self.name!r}: count", self.count)
        not_negative(f"domain {self.name!r}: per_day", self.per_day)


class JobRate(msgspec.Struct, frozen=True, kw_only=True):
    """How often the job is hit, counted rightly and naively.

    ``naive_mtbf_h`` takes every node that went down for a failure of its own; ``naive_error`` is how many times too
    short it is. Node losses, not events, are what spares must cover.
    """

    events_per_day: float
    mtbf_h: float
    node_losses_per_day: float
    naive_mtbf_h: float
    naive_error: float


def job_rate(domains: tuple[Domain, ...]) -> JobRate:
    """Return the rate at which any domain of the job fails, each event once.

    Source: Marshall and Olkin 1967, multivariate exponential: independent shocks, each killing its own set.
    """
    events = sum(domain.count * domain.per_day for domain in domains)
    losses = sum(domain.count * domain.per_day * domain.nodes_each for domain in domains)
    if events <= 0:
        raise PlanInputError("domains", "at least one domain that fails", "no failures", "give a per_day above zero")
    return JobRate(
        events_per_day=events,
        mtbf_h=HOURS_PER_DAY / events,
        node_losses_per_day=losses,
        naive_mtbf_h=HOURS_PER_DAY / losses,
        naive_error=losses / events,
    )


def node_survival(domains: tuple[Domain, ...], hours: float) -> float:
    """Return the chance that one given node lives through ``hours``, all its domains considered.

    Source: Marshall and Olkin 1967, marginal of the multivariate exponential: rates of all shocks that hit it add.
    """
    return exp(-sum(domain.per_day for domain in domains) * not_negative("hours", hours) / HOURS_PER_DAY)


def joint_survival(domains: tuple[Domain, ...], hours: float) -> tuple[float, float]:
    """Return the chance that two nodes that share every domain but their own both live: (true, if independent).

    The first domain is taken as the private one of each node.

    Source: Marshall and Olkin 1967: a shared shock counts once.
    """
    span_d = float(not_negative("hours", hours)) / HOURS_PER_DAY
    private = sum(domain.per_day for domain in domains[:1])
    shared = sum(domain.per_day for domain in domains[1:])
    return exp(-(2 * private + shared) * span_d), exp(-2 * (private + shared) * span_d)
