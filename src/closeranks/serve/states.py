"""What is to be seen of a gateway at a moment: for the admin API and for gauges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from closeranks.serve.policies.breaker import State
from closeranks.serve.policies.health import Grade

if TYPE_CHECKING:
    from closeranks.serve.gateway import Gateway
    from closeranks.serve.sessions.snapshots import Snapshots

Gauge = tuple[str, str, dict[str, str], float]


def replica_states(gateway: Gateway) -> list[dict[str, Any]]:
    """Every replica: whether it is asked, and if not, why."""
    now_s = gateway.now_s()
    states = []
    for name, member in gateway.traffic.fleet.members.items():
        standing, settings = member.judge.standing(now_s), gateway.replicas[name].settings
        states.append(
            {
                "name": name,
                "url": settings.url,
                "engine": settings.engine,
                "tier": member.tier,
                "role": settings.role,
                "domain": settings.domain,
                "grade": standing.grade,
                "reason": member.out or standing.reason,
                "out": bool(member.out),
                "breaker": member.breaker.state,
                "outstanding": member.load.outstanding,
                "capacity": member.load.capacity,
            }
        )
    return states


def ladder_state(gateway: Gateway) -> dict[str, Any]:
    """Where on the ladder the service is, and what is known of each level."""
    ladder = gateway.traffic.ladder
    return {
        "level": ladder.level,
        "reason": ladder.reason,
        "forced": ladder.forced,
        "degraded_share": ladder.degraded_share(gateway.now_s()),
        "levels": [
            {
                "name": level.settings.name,
                "served": level.served,
                "verified": level.verified,
                "compared": level.compared,
                "difference": level.difference,
            }
            for level in ladder.levels
        ],
    }


def status_of(gateway: Gateway) -> dict[str, Any]:
    """All at one glance: requests, the ladder, what is asked, and a drill if there was one."""
    traffic, now_s = gateway.traffic, gateway.now_s()
    return {
        "in_flight": gateway.in_flight,
        "queued": sum(traffic.admission.waiting()),
        "level": traffic.ladder.level,
        "degraded_share": traffic.ladder.degraded_share(now_s),
        "replicas": {state["name"]: state["breaker"] for state in replica_states(gateway)},
        "dependencies": {name: one.breaker.state for name, one in traffic.dependencies.by_name.items()},
        "drill": gateway.drills.state(),
    }


def _of_snapshots(snapshots: Snapshots) -> Iterator[Gauge]:
    yield "kv_snapshots", "Sessions whose KV cache is kept in a file.", {}, float(snapshots.plan.count)
    yield "kv_snapshot_bytes", "Of all those files.", {}, float(snapshots.plan.size_bytes)
    for (action, how), count in snapshots.counts.items():
        about = "Saves and restores of KV caches, by how they ended."
        yield "kv_total", about, {"action": action, "outcome": how}, float(count)
    for exactness, count in snapshots.moved.items():
        about = "Answers of sessions that were elsewhere before, by how exactly they go on."
        yield "sessions_moved_total", about, {"exactness": exactness}, float(count)


def gauges(gateway: Gateway) -> Iterator[Gauge]:
    """Name, text, labels and value of every gauge; one whose name ends with _total is a counter."""
    now_s, traffic = gateway.now_s(), gateway.traffic
    for name, member in traffic.fleet.members.items():
        label = {"replica": name}
        up = member.judge.grade(now_s) is not Grade.DOWN and not member.out
        yield "replica_up", "1: the replica is asked.", label, float(up)
        yield "replica_outstanding", "Work that it has not yet ended.", label, member.load.outstanding
        yield "breaker_open", "1: its breaker is open.", label, float(member.breaker.state is not State.CLOSED)
    for name, one in traffic.dependencies.by_name.items():
        label = {"dependency": name}
        opened = float(one.breaker.state is not State.CLOSED)
        yield "dependency_open", "1: replicas are told to do without it.", label, opened
        yield "dependency_p99_seconds", "Of its latest answers.", label, one.p99_s(now_s) or 0.0
    for tier in {member.tier for member in traffic.fleet.members.values()}:
        yield "panic", "1: too few replicas are well.", {"tier": tier}, float(traffic.fleet.panics(now_s, tier))
    yield "in_flight", "Requests that are being answered.", {}, float(gateway.in_flight)
    yield "queued", "Requests that wait for their turn.", {}, float(sum(traffic.admission.waiting()))
    yield "concurrency_limit", "Work that is let in at once.", {}, float(traffic.limiter.limit)
    yield "shed_per_second", "Requests that are turned away.", {}, traffic.admission.shed_per_s(now_s)
    yield "retry_budget_spent", "Share of the budget for repeated work in use.", {}, traffic.budget.used(now_s)
    drill = gateway.drills.drill
    about = "1: a drill goes on."
    yield "drill_active", about, {"what": "" if drill is None else drill.order.what}, float(drill is not None)
    for (name, effect), count in gateway.drills.struck.items():
        yield "drilled_total", "Calls that drills have struck.", {"dependency": name, "effect": effect}, float(count)
    if gateway.snapshots is not None:
        yield from _of_snapshots(gateway.snapshots)
    yield "ladder_level", "0: served in full.", {}, float(traffic.ladder.level)
    yield "degraded_share", "Share of requests served below the full level.", {}, traffic.ladder.degraded_share(now_s)
    for number, level in enumerate(traffic.ladder.levels):
        label = {"level": str(number), "name": level.settings.name}
        yield "level_verified", "1: the level has met its own target lately.", label, float(level.verified)
        yield "level_difference", "Of its answers from the full service's; 0: none.", label, level.difference
