"""The simulator: months of a fleet in seconds, a thousand replicas in a minute, and as fast as it is beside SimPy.

    python bench/simulate.py [--quick] [--json]

Virtual runs of 16,384 GPUs for 90 days and of 131,072 GPUs for 30 days, with racks, power, fabric, hangs, stragglers,
partitions, slow and lost storage, reclaims and crashes; 1,000 replicas of 1,024 GPUs for 30 days; 10,000 episodes of a
fault storm (quick: a tenth of both). Processor time of one core; of the replicas, half of what their two processes
spent, starting them included. SimPy runs a
bare loop of failures and repairs for 2,048 nodes, without a controller, in the same process; its events per second
stand beside ours, and beside those of the same loop on our queue.
"""

from __future__ import annotations

import heapq
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from _common import Bench, at_most

from closeranks.plan.cluster import Cluster, cluster_of
from closeranks.simulate.draw import draw
from closeranks.simulate.policy import Policy
from closeranks.simulate.replicas import Work, run_all
from closeranks.simulate.scenario import scenario_of, setup_of
from closeranks.simulate.storm import Broken, storm
from closeranks.simulate.world import World

DOMAINS = [
    {"name": "rack", "nodes_each": 8, "per_day": 2e-3},
    {"name": "power", "nodes_each": 64, "per_day": 1e-3},
    {"name": "fabric", "nodes_each": 0, "per_day": 0.05},
]
FAULTS = [
    {"kind": "hang", "per_day": 0.2},
    {"kind": "straggler", "per_day": 0.2},
    {"kind": "partition", "per_day": 0.1, "lasts_s": 60.0},
    {"kind": "storage slow", "per_day": 0.1},
    {"kind": "storage down", "per_day": 0.1},
    {"kind": "spot", "per_day": 0.1, "notice_s": 120.0, "lasts_s": 7200.0},
    {"kind": "crash", "per_day": 0.5},
]
NODES = 2048
MTBF_H, REPAIR_H = 3_700.0, 24.0


def cluster(accelerators: int, gigabytes_per_s: float) -> Cluster:
    """A cluster with every domain and every kind of fault."""
    raw: dict[str, Any] = {
        "hardware": {"accelerators": accelerators},
        "job": {"params": 405e9, "recipe": "bf16 weights + fp32 master + fp32 moments"},
        "store": {"gigabytes_per_s": gigabytes_per_s},
        "domain": DOMAINS,
        "fault": FAULTS,
    }
    return cluster_of(raw)


def one_run(accelerators: int, days: float) -> tuple[float, int, int]:
    """Processor seconds with drawing and all, events, incidents."""
    described = cluster(accelerators, 500.0)
    began_s = time.process_time()
    policy = Policy(name="p", spares=400)
    scenario = scenario_of(described, days=days)
    found = World(setup_of(described, policy, scenario), draw(scenario, 1, policy.spares)).run()
    assert found.outcome == "stopped", found.reason
    return time.process_time() - began_s, found.events, found.incidents


def thousand_replicas(replicas: int) -> float:
    """Seconds on two cores."""
    described = cluster(1024, 100.0)
    scenario = scenario_of(described, days=30)
    work = Work(scenario=scenario, setups=(setup_of(described, Policy(name="p", spares=8), scenario),))
    began_s = time.perf_counter()
    assert len(run_all(work, range(replicas), 2, lambda _: None)) == replicas
    return time.perf_counter() - began_s


def children_s() -> float:
    """Processor seconds of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def simpy_loop(hours: float, seed: int) -> int:
    """Every node fails and is repaired, in SimPy; the events."""
    import simpy

    rng, environment, events = random.Random(seed), simpy.Environment(), [0]

    def node() -> Any:
        while True:
            yield environment.timeout(rng.expovariate(1 / MTBF_H))
            events[0] += 1
            yield environment.timeout(rng.expovariate(1 / REPAIR_H))
            events[0] += 1

    for _ in range(NODES):
        environment.process(node())
    environment.run(until=hours)
    return events[0]


def own_loop(hours: float, seed: int) -> int:
    """The same on a heap of instants, which is what the virtual cluster has."""
    rng, events = random.Random(seed), 0
    queue = [(rng.expovariate(1 / MTBF_H), number, True) for number in range(NODES)]
    heapq.heapify(queue)
    while queue[0][0] < hours:
        at_h, number, works = queue[0]
        events += 1
        mean_h = REPAIR_H if works else MTBF_H
        heapq.heapreplace(queue, (at_h + rng.expovariate(1 / mean_h), number, not works))
    return events


def rate(loop: Callable[[float, int], int], hours: float, seed: int) -> float:
    """Events per processor second."""
    began_s = time.process_time()
    events = loop(hours, seed)
    return events / (time.process_time() - began_s)


def storms(count: int) -> tuple[float, int]:
    """Processor seconds, and how many episodes broke something."""
    began_s = time.process_time()
    broken = sum(isinstance(storm(seed), Broken) for seed in range(count))
    return time.process_time() - began_s, broken


def main() -> int:
    """Measure and judge."""
    bench = Bench("simulate", __doc__ or "")
    quick = bench.options.quick
    rounds = 1 if quick else 3
    quarter = min(one_run(16_384, 90) for _ in range(rounds))
    bench.say(f"16,384 GPUs for 90 days: {quarter[0]:.2f} s, {quarter[1]:,} events, {quarter[2]:,} incidents")
    month = min(one_run(131_072, 30) for _ in range(rounds))
    bench.say(f"131,072 GPUs for 30 days: {month[0]:.2f} s, {month[1]:,} events, {month[2]:,} incidents")
    memory_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    before_s = children_s()
    replicas = 100 if quick else 1_000
    wall_s = thousand_replicas(replicas)
    spent_s = children_s() - before_s
    bench.say(f"{replicas:,} replicas of 1,024 GPUs for 30 days: {wall_s:.1f} s, {spent_s:.1f} s of processors")
    episodes = 1_000 if quick else 10_000
    storm_s, broken = storms(episodes)
    bench.say(f"{episodes:,} storm episodes: {storm_s:.1f} s, {broken} broken")
    hours = 20_000.0 if quick else 100_000.0
    seed = bench.options.seed
    bench.say(f"SimPy, failures and repairs alone: {rate(simpy_loop, hours, seed):,.0f} events/s")
    bench.say(f"the same loop on a heap: {rate(own_loop, hours, seed):,.0f} events/s")
    bench.say(f"the virtual cluster, controller included: {quarter[1] / quarter[0]:,.0f} events/s")
    scale = 1_000 / replicas
    return bench.finish(
        [
            at_most("16,384 GPUs for 90 days, s", quarter[0], 2.0),
            at_most("131,072 GPUs for 30 days, s", month[0], 10.0),
            at_most("memory, GiB", memory_gib, 1.0),
            at_most("1,000 replicas, s on 2 cores", scale * spent_s / 2, 60.0),
            at_most("1,000 replicas, s of wall time in 2 processes", scale * wall_s, 60.0),
            at_most("storm episodes that broke an invariant", broken, 0),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
