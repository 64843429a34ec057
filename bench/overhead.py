"""What supervision costs a step that nothing happens to.

Steps with supervision switched off and on in alternating blocks inside one process group, so that both sides share
processes, memory and weather; the same with ``guard="basic"``; the vitals that a step writes; and whole runs under
closeranks and under plain DDP, which inform only: two plain runs of one script differ by more than what is asked.

The steps are those of a model of 289 parameters: what is added stands out. What is judged is the difference of the
lower quartiles of neighbouring blocks, which a neighbour that takes the processor now and then does not reach; beside
it stand the difference of the medians, and what all threads of one seat compute, of which no step is left out. A bar
whose bounds lie on both sides of it is not resolved.

What the supervisor computes for a step is told from long blocks, for it looks at the pages only 20 times a second: no
step waits for it, but it takes that from a core.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from _common import Bench, Ratio, at_most, interleaved, median_bounds, ratio_of_medians, spelled, surely_at_most

from closeranks.events import Category
from closeranks.signs import Doing
from closeranks.vitals import Vitals, create_memfd

Block = dict[str, Any]  # see _overhead_worker.py
WORKER = Path(__file__).with_name("_overhead_worker.py")
RANKS = 2
SHORT = ("--block", "60")
LONG = ("--block", "600")  # many looks of the supervisor in each
GPT = ("--width", "64", "--layers", "1", "--block", "12")  # 116,000 parameters
LARGE = ("--width", "256", "--layers", "6", "--block", "6")  # 4.8 million parameters: norms take their time
LIMIT_S = 300.0
COLLECTIVES = 2  # gradient buckets of a model of 5M parameters
APPLYING = int(Doing.APPLYING)
VITALS_STEPS, VITALS_GROUPS = 500, 100


def vitals_s() -> list[float]:
    """Seconds that the vitals of one step take, by group of steps. Whatever disturbs a group only adds to it."""
    fd = create_memfd("closeranks-bench")
    vitals = Vitals(fd)
    vitals.begin(Category.USEFUL)
    groups = []
    for _ in range(VITALS_GROUPS):
        began_ns = time.perf_counter_ns()
        for step in range(VITALS_STEPS):
            write_step(vitals, step)
        groups.append((time.perf_counter_ns() - began_ns) / 1e9 / VITALS_STEPS)
    vitals.close()
    os.close(fd)
    return groups


def write_step(vitals: Vitals, step: int) -> None:
    """What the training thread shows of one step."""
    words = vitals.words
    vitals.open_step(step, 1, time.monotonic_ns())
    for number in range(COLLECTIVES):
        vitals.enter(1, 4096, time.monotonic_ns())
        words[1] = number
    words[6] = APPLYING
    vitals.close_step(step, 1, 0, 0.5)


def run_worker(side: str, seconds: float, words: tuple[str, ...]) -> list[Block]:
    """Blocks of steps of seat 0 in one run."""
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder:
        out = Path(folder) / "blocks.json"
        if side == "plain":
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        else:
            launcher = [sys.executable, "-m", "closeranks", "run", "--run-dir", str(Path(folder) / "run")]
        command = [*launcher, "--nproc-per-node", str(RANKS), str(WORKER), side, str(out)]
        command += ["--seconds", str(seconds), *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False)
        if done.returncode != 0 or not out.exists():
            raise RuntimeError(f"{side} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        blocks: list[Block] = json.loads(out.read_text())
        return blocks


def lower_quartile_s(block: Block) -> float:
    """Of the time that its steps took."""
    return statistics.quantiles(block["s"])[0]


def median_s(block: Block) -> float:
    """Of the time that its steps took."""
    return statistics.median(block["s"])


def computed_s(block: Block) -> float:
    """By all threads of the seat, in a step on average."""
    return statistics.fmean(block["cpu_s"])


def beside_s(block: Block) -> float:
    """By the supervisor, for a step on average."""
    return float(block["beside_s"])


READINGS: Final[dict[str, Callable[[Block], float]]] = {
    "time, lower quartile": lower_quartile_s,
    "time, median": median_s,
    "computation of one seat": computed_s,
}


def paired_costs_s(blocks: list[Block], reading: Callable[[Block], float]) -> tuple[list[float], list[float]]:
    """What the side that is on adds: each of its blocks against the mean of its neighbours; the same within one side.

    The first list holds on minus off for every block that is on. The second is the control: the difference of
    the two neighbours, halved, where no difference is due.
    """
    found = [reading(block) for block in blocks]
    middle = [i for i in range(1, len(blocks) - 1) if blocks[i]["on"]]
    added = [found[i] - (found[i - 1] + found[i + 1]) / 2 for i in middle]
    drift = [(found[i + 1] - found[i - 1]) / 2 for i in middle]
    return added, drift


def say_added(bench: Bench, what: str, blocks: list[Block], readings: dict[str, Callable[[Block], float]]) -> None:
    """Print what a side that was switched adds to a step."""
    off_s = statistics.median(median_s(block) for block in blocks if not block["on"])
    bench.say(f"{what} adds to a step of {off_s * 1e3:.2f} ms:")
    for name, reading in readings.items():
        added_s, drift_s = paired_costs_s(blocks, reading)
        bench.say(f"  {name}: {_bounded(added_s)}, {len(added_s)} pairs of blocks; control: {_bounded(drift_s)}")


def _bounded(costs_s: list[float]) -> str:
    if not costs_s:
        return "not measured"
    low_s, high_s = median_bounds(costs_s)
    return f"{statistics.median(costs_s) * 1e6:.0f} us (95 % bounds {low_s * 1e6:.0f} to {high_s * 1e6:.0f})"


def plain_ratio(bench: Bench, rounds: int, seconds: float) -> None:
    """Whole runs in turn: closeranks, plain, plain again."""

    def step_s(side: str) -> float:
        return statistics.median(map(median_s, run_worker(side, seconds, GPT)))

    sides = {name: lambda side=side: step_s(side) for name, side in SIDES.items()}
    medians = interleaved(sides, rounds, bench.options.seed)
    for name, values in medians.items():
        bench.say(f"{name}: median step {spelled(values, 'ms', 1000)}")
    bench.say(f"closeranks over plain: {ratio_of_medians(medians['closeranks'], medians['plain'])}")
    again: Ratio = ratio_of_medians(medians["plain again"], medians["plain"])
    bench.say(f"control, plain again over plain: {again}")


SIDES = {"closeranks": "closeranks", "plain": "plain", "plain again": "plain"}


def main() -> int:
    """Measure, compare, judge."""
    bench = Bench("overhead", __doc__ or "")
    quick = bench.options.quick
    share = 0.25 if quick else 1.0  # of the seconds that a full measurement takes
    writes_s = vitals_s()
    supervised = run_worker("toggled", 60 * share, SHORT)
    say_added(bench, "supervision", supervised, READINGS)
    beside = run_worker("toggled", 40 * share, LONG)
    say_added(bench, "supervision, long blocks,", beside, {"computation of the supervisor": beside_s})
    writes_s += vitals_s()  # a neighbour may have had the core's other half all the first time
    say_added(bench, 'guard="basic"', run_worker("guarded", 40 * share, SHORT), READINGS)
    say_added(bench, 'guard="basic", 4.8 M parameters,', run_worker("guarded", 40 * share, LARGE), READINGS)
    plain_ratio(bench, rounds=1 if quick else 5, seconds=8 * share)
    writes_s += vitals_s()
    bench.say(f"vitals of a step: {spelled(writes_s, 'us', 1e6)}")
    added_us = [1e6 * cost_s for cost_s in paired_costs_s(supervised, lower_quartile_s)[0]]
    return bench.finish(
        [
            surely_at_most("supervision of a step on a CPU rank, us", added_us, 150),
            at_most("vitals of a step, us, fastest group", 1e6 * min(writes_s), 2),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
