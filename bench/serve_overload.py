"""Five times the capacity for a while, then little; then replicas that fail everything: what the real gateway does.

Two engines of known capacity, one gateway process, clients that do not wait for each other: all in processes of their
own, over sockets. Half the capacity is asked for by premium clients, the rest of the flood by two free tenants and a
batch. Measured are the goodput of the top class, how long admitted requests take, the memory of the gateway, how soon
after the flood everybody is served again, and how much was retried, beside what the budget allows.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import uvloop
from _common import Bench, at_least, at_most
from _serve_load import PATIENCE_S, Call, Load, Stream
from _serve_sides import Running, closeranks, free_port

SLOTS, SERVICE_S, QUEUE = 8, 0.2, 24
CAPACITY_PER_S = 2 * SLOTS / SERVICE_S
WAIT_S, WINDOW_S, SHARE, FLOOR_PER_S = 2.0, 10.0, 0.2, 10.0
RECOVERED_S = 1.0  # a request that takes longer is none of a service that is well
LOOK_S = 0.25
MIB = 2**20
GOLD, FREE, BATCH = "x-tenant: gold\r\nx-priority: interactive\r\n", "x-tenant: free{}\r\n", "x-priority: batch\r\n"
FLOOD = (
    Stream("gold", 0.5 * CAPACITY_PER_S, GOLD),
    Stream("free", 1.5 * CAPACITY_PER_S, FREE.format(1)),
    Stream("free", 1.5 * CAPACITY_PER_S, FREE.format(2)),
    Stream("batch", 1.5 * CAPACITY_PER_S, BATCH),
)
CALM = (Stream("free", 0.3 * CAPACITY_PER_S, FREE.format(1)), Stream("batch", 0.1 * CAPACITY_PER_S, BATCH))
SETTINGS = f"""
[admission]
wait_s = {WAIT_S}
[budget]
share = {SHARE}
floor_per_s = {FLOOR_PER_S}
window_s = {WINDOW_S}
[admin]
port = 0
token_file = "{{folder}}/token"
[[tenant]]
name = "gold"
premium = true
"""


class Seen(NamedTuple):
    """What the gateway shows at a moment."""

    at_s: float
    bytes: int  # of its resident memory
    first: float  # attempts so far that were first ones
    retries: float  # and retries
    waiting: float


class Watch:
    """Reads a gateway's memory and metrics four times a second."""

    def __init__(self, running: Running, where: str, token: str) -> None:
        self._status = Path(f"/proc/{running.process.pid}/status")
        self._port = int(where.rpartition(":")[2])
        self._token = token
        self.seen: list[Seen] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._token}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        lines = (await reader.read()).decode().splitlines()
        writer.close()

        def total(start: str, label: str = "") -> float:
            return sum(float(line.split()[-1]) for line in lines if line.startswith(start) and label in line)

        attempts = "closeranks_serve_attempts_total"
        kept = next(line for line in self._status.read_text().splitlines() if line.startswith("VmRSS"))
        self.seen.append(
            Seen(
                at_s=time.monotonic(),
                bytes=int(kept.split()[1]) * 1024,
                first=total(attempts, 'kind="first"'),
                retries=total(attempts, 'kind="retry"'),
                waiting=total("closeranks_serve_queued"),
            )
        )


def engines(folder: Path) -> list[Running]:
    """Two engines of known capacity."""
    started = []
    for _ in range(2):
        command = [sys.executable, "-m", "closeranks.serve.drill.bounded", str(free_port())]
        command += ["--slots", str(SLOTS), "--service-s", str(SERVICE_S), "--queue", str(QUEUE)]
        with (folder / "engines.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        started.append(Running(process, int(process.stdout.readline().rpartition(b":")[2])))
    return started


async def make(engine: Running, failing: str) -> None:
    """Make an engine fail everything, or not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    body = failing.encode()
    writer.write(b"PUT /drill/failing HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


class Course(NamedTuple):
    """When what began, and all that was seen."""

    flood_s: float
    calm_s: float
    storm_s: float
    over_s: float
    calls: list[Call]
    seen: list[Seen]


def watch_on(gateway: Running, folder: Path) -> Watch:
    """A watch at the gateway's admin API, once it has said where that is."""
    (log,) = folder.glob("python*.log")
    while "admin API on" not in (said := log.read_text()):
        time.sleep(0.01)
    where = said.partition("admin API on ")[2].partition(",")[0]
    return Watch(gateway, where, (folder / "token").read_text().strip())


async def play(gateway: Running, watch: Watch, started: list[Running], seconds: Callable[[float], float]) -> Course:
    """The flood, the calm after it, the storm of failures, and the calm after that."""
    watching = asyncio.create_task(watch.run())
    load = Load(gateway.port, seed=1)
    await load.run(CALM, 2.0)  # what a process needs at all is there
    flood_s = time.monotonic()
    await load.run(FLOOD, seconds(20.0))
    calm_s = time.monotonic()
    await load.run(CALM, seconds(12.0))
    storm_s = time.monotonic()
    await asyncio.gather(*(make(engine, "yes") for engine in started))
    await load.run(FLOOD, seconds(6.0))
    await asyncio.gather(*(make(engine, "no") for engine in started))
    over_s = time.monotonic()
    await load.run(CALM, seconds(20.0))
    await load.settle()
    watching.cancel()
    return Course(flood_s, calm_s, storm_s, over_s, load.calls, watch.seen)


def recovery_s(calls: list[Call], from_s: float, to_s: float) -> float:
    """How long after ``from_s`` the last request came that was not served, and soon."""
    late = [call.at_s for call in calls if from_s <= call.at_s < to_s and not (call.good and call.took_s < RECOVERED_S)]
    return max(late, default=from_s) - from_s


def over_budget(seen: list[Seen]) -> float:
    """The most that was retried within a window, as a share of what the budget can have allowed for it."""
    worst = 0.0
    for index, start in enumerate(seen):
        before = next(one for one in seen if one.at_s >= start.at_s - WINDOW_S)
        for end in seen[index + 1 :]:
            if end.at_s - start.at_s > WINDOW_S:
                break
            allowed = FLOOR_PER_S * WINDOW_S + SHARE * (end.first - before.first)
            worst = max(worst, (end.retries - start.retries) / allowed)
    return worst


def quantile(values: list[float], share: float) -> float:
    """Of sorted values, the one that this share does not exceed."""
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


def main() -> int:
    """Run it."""
    bench = Bench("serve_overload", __doc__ or "")
    folder = Path(tempfile.mkdtemp(prefix="closeranks-bench-"))
    started = engines(folder)
    replica = f"capacity = {SLOTS}\n"
    gateway = closeranks([engine.port for engine in started], folder, replica, SETTINGS.format(folder=folder))
    shorter = 0.5 if bench.options.quick else 1.0
    try:
        course = uvloop.run(play(gateway, watch_on(gateway, folder), started, lambda s: shorter * s))
    finally:
        gateway.stop()
        for engine in started:
            engine.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return bench.finish(judged(bench, course))


def judged(bench: Bench, course: Course) -> list:
    """Print what happened; the bars."""
    flood = [call for call in course.calls if course.flood_s <= call.at_s < course.calm_s]
    lasted_s = course.calm_s - course.flood_s
    offered = len(flood) / lasted_s
    bench.say(f"capacity {CAPACITY_PER_S:.0f}/s; offered {offered:.0f}/s for {lasted_s:.0f} s")
    for name in ("gold", "free", "batch"):
        mine = [call for call in flood if call.name == name]
        took = [call.took_s for call in mine if call.status == 200]
        refused = [call.took_s for call in mine if call.status in (429, 503)]
        bench.say(
            f"  {name}: {len(mine)} asked, {sum(call.good for call in mine)} served (p50 {quantile(took, 0.5):.2f} s, "
            f"p99 {quantile(took, 0.99):.2f} s), {len(refused)} refused (p50 {quantile(refused, 0.5):.3f} s), "
            f"{sum(call.status in (0, 502, 504) for call in mine)} failed"
        )
    gold = [call for call in flood if call.name == "gold"]
    served = [call.took_s for call in flood if call.status == 200]
    inside = [one for one in course.seen if course.flood_s <= one.at_s < course.calm_s]
    early = max(one.bytes for one in inside[: max(1, len(inside) // 2)])
    late = max(one.bytes for one in inside[len(inside) // 2 :])
    end = course.calls[-1].at_s
    retries = course.seen[-1].retries
    recovered = recovery_s(course.calls, course.calm_s, course.storm_s), recovery_s(course.calls, course.over_s, end)
    bench.say(f"  memory: {early / MIB:.1f} MiB at most in the first half of the flood, {late / MIB:.1f} in the second")
    bench.say(f"  at most {max(one.waiting for one in course.seen):.0f} waited at once")
    bench.say(f"  everybody is served {recovered[0]:.1f} s after the flood, {recovered[1]:.1f} s after all had failed")
    bench.say(f"  {retries:.0f} retries of {course.seen[-1].first:.0f} attempts in all")
    return [
        at_least("offered, times the capacity", offered / CAPACITY_PER_S, 4.5),
        at_least("goodput of the top class in the flood", sum(call.good for call in gold) / len(gold), 0.99),
        at_least("goodput of all, of the capacity", sum(c.good for c in flood) / lasted_s / CAPACITY_PER_S, 0.8),
        at_most("admitted requests: p99, s", quantile(served, 0.99), WAIT_S + 1.5),
        at_most("growth of memory from one half of the flood to the other, MiB", (late - early) / MIB, 8.0),
        at_most("seconds until everybody is served after the flood", recovered[0], 6.0),
        at_most("seconds until everybody is served after all have failed", recovered[1], 6.0),
        at_least("retries that were made", retries, 1),
        at_most("most retries in any 10 s, of what the budget allows", over_budget(course.seen), 1.0),
        at_most("requests without an answer", sum(call.status == 0 for call in course.calls), 0),
        at_most("longest that a client waited, s", max(call.took_s for call in course.calls), PATIENCE_S + 1.0),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
