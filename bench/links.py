"""What a job of many nodes costs its coordinator, and how well its detector tells silence from jitter.

The coordinator is the real one: a candidate process as a supervisor starts it, elected in a register of its own. The
nodes live in another process, each with its own socket: they prove themselves, take 8 seats each, train, and close a
step with every beat, which carries the vitals of all their seats and what each of them spent on the step. The
processor time of the coordinator (user and system, all threads) while they train is divided by the time passed. Every
size is measured several times, each time from a new start. Then the detector watches arrivals with jitter of several
shapes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from _arrivals import BEAT_S, DELAYS, judged
from _common import Bench, at_most, spelled

from closeranks.cluster import aside
from closeranks.nodes.words import Address
from closeranks.run.folder import RunFile, write_run_file
from closeranks.run.links import Link
from closeranks.run.options import RunOptions

NODES = Path(__file__).with_name("_links_nodes.py")
SIZES = (250, 500, 1000)
SEATS_PER_NODE = 8
CORE_BAR = 0.25  # of one core, at 1,000 nodes and 1 Hz
SETTLE_S = 3.0  # what the start of the job left to do is done
LED_WITHIN_S = 60.0
TRAIN_WITHIN_S = 180.0


class Load(NamedTuple):
    """What the coordinator used in one run."""

    core: float  # share of one core, over all seconds of training
    worst: float  # of any second
    starting_s: float  # until all seats trained
    starting_cpu_s: float
    missed: int  # attempts and connections of nodes that failed


@contextmanager
def coordinator(folder: Path, nodes: int) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A candidate process, and our end of what a supervisor has of it."""
    options = RunOptions(
        target="train.py",
        seats=SEATS_PER_NODE * nodes,
        nnodes=nodes,
        run_id="bench",
        authority=f"sqlite:{folder / 'register.db'}",
        interface="127.0.0.1",
    )
    write_run_file(folder, RunFile(run="bench", command=("train.py",), options=options))
    ours, theirs = socket.socketpair()
    words = ("-P", "-m", "closeranks.cluster.candidate", str(folder), str(theirs.fileno()), str(os.getpid()))
    with ours, (folder / "candidate.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *words], pass_fds=(theirs.fileno(),), stdout=log, stderr=log)
        theirs.close()
        try:
            yield process, ours
        finally:
            process.kill()
            process.wait()


async def led_at(sock: socket.socket) -> Address:
    """Let the candidate begin; where it leads."""
    leads: asyncio.Future[Address] = asyncio.get_running_loop().create_future()

    def hear(word: Any) -> None:
        if isinstance(word, aside.LeaderSeen) and not leads.done():
            leads.set_result(word.address)

    def broken(reason: str) -> None:
        if not leads.done():
            leads.set_exception(RuntimeError(f"the candidate ended: {reason}"))

    sock.setblocking(False)
    link = Link(sock, hear, broken, aside.FromCandidate)
    link.on_closed = lambda: broken("see candidate.log")
    link.send(aside.Begin(supervisor="0" * 16, before=0, probe_port=1))
    try:
        return await asyncio.wait_for(leads, LED_WITHIN_S)
    finally:
        link.close()


def used_s(pid: int) -> float:
    """Processor time of another process, all its threads: its clock is named as clock_getcpuclockid(3) does."""
    return time.clock_gettime((~pid << 3) | 2)


def loaded(nodes: int, seconds: int) -> Load:
    """Measure the coordinator with so many nodes."""
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder:
        os.environ["CLOSERANKS_TOKEN"] = secrets.token_hex(32)
        with coordinator(Path(folder), nodes) as (process, ours):
            address = asyncio.run(led_at(ours))
            begun_s, before_s = time.monotonic(), used_s(process.pid)
            peers = [sys.executable, str(NODES), str(nodes)]
            with subprocess.Popen(peers, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
                assert clients.stdin is not None
                assert clients.stdout is not None
                clients.stdin.write(json.dumps([address.host, address.port]) + "\n")
                clients.stdin.flush()
                await_training(clients, process, Path(folder))
                starting_s, starting_cpu_s = time.monotonic() - begun_s, used_s(process.pid) - before_s
                time.sleep(SETTLE_S)
                seen = [share_of_a_second(process.pid) for _ in range(seconds)]
                clients.stdin.close()
                missed = json.loads(clients.stdout.readline())
    return Load(sum(seen) / len(seen), max(seen), starting_s, starting_cpu_s, missed)


def await_training(clients: subprocess.Popen[str], process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until all seats train.

    Raises:
        RuntimeError: they do not, in time; the nodes have been ended.
    """
    assert clients.stdout is not None
    there, _, _ = select.select([clients.stdout], [], [], TRAIN_WITHIN_S)
    if not there or not clients.stdout.readline():
        clients.kill()
        told = (folder / "candidate.log").read_text()
        raise RuntimeError(
            f"not all seats trained within {TRAIN_WITHIN_S:g} s; {used_s(process.pid):.1f} s used; {told}"
        )


def share_of_a_second(pid: int) -> float:
    """Of one core, that the process uses in the next second."""
    began_s, before_s = time.monotonic(), used_s(pid)
    time.sleep(1.0)
    return (used_s(pid) - before_s) / (time.monotonic() - began_s)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What this bench alone needs."""
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES), help="sizes of the job")
    parser.add_argument("--rounds", type=int, default=3, help="runs of every size")


def main() -> int:
    """Measure and print."""
    bench = Bench("links", __doc__ or "", add_options)
    seconds, rounds = (3, 1) if bench.options.quick else (10, bench.options.rounds)
    loads: dict[int, list[Load]] = {nodes: [] for nodes in bench.options.nodes}
    for number in range(rounds):  # round by round, so that drift hits all sizes alike
        for nodes, measured in loads.items():
            measured.append(loaded(nodes, seconds))
            bench.say(f"round {number}, {nodes:5} nodes: {100 * measured[-1].core:.1f} % of one core")
    for nodes, measured in loads.items():
        bench.say(
            f"{nodes:5} nodes, {SEATS_PER_NODE * nodes} seats, at 1 Hz: "
            f"{spelled([load.core for load in measured], '% of one core', 100)}, "
            f"{100 * max(load.worst for load in measured):.3g} % in the worst of {rounds * seconds} seconds; "
            f"all trained after {spelled([load.starting_s for load in measured], 's')}, "
            f"{spelled([load.starting_cpu_s for load in measured], 's of a core')}; "
            f"{sum(load.missed for load in measured)} calls or connections failed"
        )
    most = max(loads)
    worst = statistics.median(load.core for load in loads[most])
    hours = 1.0 if bench.options.quick else 12.0
    bench.say(f"the detector, beats every {BEAT_S:g} s, {hours:g} h of each shape of delays, nobody fails:")
    for name, delay in DELAYS.items():
        quality = judged(delay, hours, bench.options.seed)
        bench.say(
            f"  {name:18} {quality.suspicions_per_hour:5.2f} false suspicions/h, a real end is suspected after "
            f"{quality.detection_s:.2f} s on average, {quality.worst_s:.2f} s at most"
        )
    return bench.finish([at_most(f"coordinator's core at {most} nodes, 1 Hz, median of runs", worst, CORE_BAR)])


if __name__ == "__main__":
    raise SystemExit(main())
