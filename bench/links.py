"""What heartbeats of many nodes cost the coordinator, and how well its detector tells silence from jitter.

A coordinator in a process of its own accepts, proves, decodes, judges and grants; the nodes live in another process,
each with its own socket and 8 seats' vitals in every beat. The coordinator's processor time (user and system) is read
every second and divided by the time passed. Then the detector watches arrivals with jitter of several shapes.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from _arrivals import BEAT_S, DELAYS, judged
from _common import Bench, at_most, spelled

HERE = Path(__file__).parent
SIZES = (250, 500, 1000)
CORE_BAR = 0.25  # of one core, at 1,000 nodes and 1 Hz


class Load(NamedTuple):
    """What the coordinator did in every second."""

    core: list[float]  # shares of one core
    beats_per_s: float
    meeting_s: float  # until every node had its first grant
    missed: int  # attempts and connections that failed
    suspicions: int


def start(script: str, token: str, *args: object) -> subprocess.Popen[str]:
    """One side, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(HERE / script), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TOKEN": token},
    )


def line(process: subprocess.Popen[str], *, ask: bool = False) -> Any:
    """The next line of JSON that it prints, where it prints one only when asked to."""
    assert process.stdin is not None
    assert process.stdout is not None
    if ask:
        process.stdin.write("\n")
        process.stdin.flush()
    return json.loads(process.stdout.readline())


def loaded(nodes: int, beat_s: float, seconds: int) -> Load:
    """Measure the coordinator with so many nodes."""
    token = secrets.token_hex(32)
    with start("_links_server.py", token, beat_s) as server:
        port = line(server)
        began_s = time.perf_counter()
        with start("_links_nodes.py", token, port, nodes, beat_s) as clients:
            missed = line(clients)
            meeting_s = time.perf_counter() - began_s
            marks = [line(server, ask=True)]
            for _ in range(seconds):
                time.sleep(1.0)
                marks.append(line(server, ask=True))
            assert clients.stdin is not None
            clients.stdin.close()
        assert server.stdin is not None
        server.stdin.close()
    assert marks[-1]["nodes"] == nodes, f"expected {nodes} nodes, got {marks[-1]['nodes']}"
    pairs = list(itertools.pairwise(marks))
    core = [(b["cpu_s"] - a["cpu_s"]) / (b["wall_s"] - a["wall_s"]) for a, b in pairs]
    passed_s = marks[-1]["wall_s"] - marks[0]["wall_s"]
    beats_per_s = (marks[-1]["beats"] - marks[0]["beats"]) / passed_s
    return Load(core, beats_per_s, meeting_s, missed, marks[-1]["suspicions"])


def main() -> int:
    """Measure and print."""
    bench = Bench("links", __doc__ or "")
    seconds = 2 if bench.options.quick else 10
    core: dict[int, float] = {}
    for nodes, beat_s in [*((size, 1.0) for size in SIZES), (SIZES[-1], BEAT_S)]:
        load = loaded(nodes, beat_s, seconds)
        bench.say(
            f"{nodes:5} nodes at {1 / beat_s:g} Hz: {spelled(load.core, '% of one core', 100)}; "
            f"{load.beats_per_s:.0f} beats/s, all met within {load.meeting_s:.2f} s, {load.missed} calls missed, "
            f"{load.suspicions} suspicions"
        )
        core.setdefault(nodes, statistics.median(load.core))
    hours = 1.0 if bench.options.quick else 12.0
    bench.say(f"the detector, beats every {BEAT_S:g} s, {hours:g} h of each shape of delays, nobody fails:")
    for name, delay in DELAYS.items():
        quality = judged(delay, hours, bench.options.seed)
        bench.say(
            f"  {name:18} {quality.suspicions_per_hour:5.2f} false suspicions/h, a real end is suspected after "
            f"{quality.detection_s:.2f} s on average, {quality.worst_s:.2f} s at most"
        )
    return bench.finish([at_most(f"coordinator's core at {SIZES[-1]} nodes, 1 Hz", core[SIZES[-1]], CORE_BAR)])


if __name__ == "__main__":
    raise SystemExit(main())
