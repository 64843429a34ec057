"""What supervision costs a step that nothing happens to.

Five measurements: the vitals that a step writes; steps with supervision switched on and off in alternating blocks
inside one process group, so that both sides share processes, memory and weather; the same with ``guard="basic"``, and
with spot checks of every step on top of it; and whole runs under closeranks and under plain DDP. Two plain runs of one
script differ by 0.6 to 1.7 % in the median: the ratio informs, the microseconds decide.

What a switch adds is told twice: in time, which a busy machine drowns in its noise, and in what all threads of one seat
compute, which waits for nobody. A cost whose bounds hold zero was not seen.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import Bench, Ratio, at_most, interleaved, median_bounds, ratio_of_medians, spelled

from closeranks.events import Category
from closeranks.signs import Doing
from closeranks.vitals import Vitals, create_memfd

WORKER = Path(__file__).with_name("_overhead_worker.py")
RANKS = 2
SMALL = ("--width", "64", "--layers", "1")  # a step of a few milliseconds: what is added stands out
LARGE = ("--width", "256", "--layers", "6")  # 4.8 million parameters: norms take their time
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


def run_worker(side: str, words: tuple[str, ...]) -> list[dict[str, float]]:
    """Steps of seat 0 in one run."""
    with tempfile.TemporaryDirectory(prefix="closeranks-bench-") as folder:
        out = Path(folder) / "times.json"
        if side == "plain":
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        else:
            launcher = [sys.executable, "-m", "closeranks", "run", "--run-dir", str(Path(folder) / "run")]
        command = [*launcher, "--nproc-per-node", str(RANKS), str(WORKER), side, str(out), *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False)
        if done.returncode != 0 or not out.exists():
            raise RuntimeError(f"{side} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        times: list[dict[str, float]] = json.loads(out.read_text())
        return times


def paired_costs_s(steps: list[dict[str, float]], clock: str = "s") -> tuple[list[float], list[float]]:
    """What supervision adds: each block's median against the mean of its neighbours'; and the same within one side.

    The first list holds on minus off for every supervised block. The second is the control: the difference of
    the two unsupervised neighbours, halved, where no difference is due. ``clock``: "s", or "cpu_s".
    """
    blocks: dict[int, list[float]] = {}
    for step in steps:
        blocks.setdefault(int(step["block"]), []).append(step[clock])
    medians = {block: statistics.median(some) for block, some in blocks.items()}
    middle = [block for block in medians if block % 2 == 1 and block - 1 in medians and block + 1 in medians]
    added = [medians[block] - (medians[block - 1] + medians[block + 1]) / 2 for block in middle]
    drift = [(medians[block + 1] - medians[block - 1]) / 2 for block in middle]
    return added, drift


def say_added(bench: Bench, what: str, steps: list[dict[str, float]]) -> float:
    """Print what a side that was switched adds to a step, and return the median in seconds."""
    off_s = statistics.median(step["s"] for step in steps if not step["on"])
    bench.say(f"{what} adds to a step of {off_s * 1e3:.1f} ms:")
    for clock, name in CLOCKS.items():
        added_s, drift_s = paired_costs_s(steps, clock)
        control = _bounded(drift_s)
        bench.say(f"  {name}: {_bounded(added_s)}, {len(added_s)} pairs of blocks; control: {control}")
    return statistics.median(paired_costs_s(steps)[0])


def _bounded(costs_s: list[float]) -> str:
    low_s, high_s = median_bounds(costs_s)
    return f"{statistics.median(costs_s) * 1e6:.0f} us (95 % bounds {low_s * 1e6:.0f} to {high_s * 1e6:.0f})"


def plain_ratio(bench: Bench, rounds: int, steps: int) -> None:
    """Whole runs in turn: closeranks, plain, plain again."""
    words = ("--steps", str(steps))

    def median_s(side: str) -> float:
        return statistics.median(step["s"] for step in run_worker(side, words))

    sides = {name: lambda side=side: median_s(side) for name, side in SIDES.items()}
    medians = interleaved(sides, rounds, bench.options.seed)
    for name, values in medians.items():
        bench.say(f"{name}: median step {spelled(values, 'ms', 1000)}")
    bench.say(f"closeranks over plain: {ratio_of_medians(medians['closeranks'], medians['plain'])}")
    again: Ratio = ratio_of_medians(medians["plain again"], medians["plain"])
    bench.say(f"control, plain again over plain: {again}")


CLOCKS = {"s": "time", "cpu_s": "computation of one seat"}
SIDES = {"closeranks": "closeranks", "plain": "plain", "plain again": "plain"}


def main() -> int:
    """Measure, compare, judge."""
    bench = Bench("overhead", __doc__ or "")
    quick = bench.options.quick
    writes_s = vitals_s()
    small, large = ("600", "240") if quick else ("3000", "800")
    supervised_s = say_added(bench, "supervision", run_worker("toggled", ("--steps", small, *SMALL)))
    say_added(bench, 'guard="basic", small model,', run_worker("guarded", ("--steps", small, *SMALL)))
    writes_s += vitals_s()  # a neighbour may have had the core's other half all the first time
    say_added(bench, 'guard="basic", 4.8 M parameters,', run_worker("guarded", ("--steps", large, *LARGE)))
    say_added(bench, "computing every step twice, small model,", run_worker("checked", ("--steps", small, *SMALL)))
    say_added(bench, "computing every step twice, 4.8 M parameters,", run_worker("checked", ("--steps", large, *LARGE)))
    plain_ratio(bench, rounds=1 if quick else 5, steps=100 if quick else 300)
    writes_s += vitals_s()
    bench.say(f"vitals of a step: {spelled(writes_s, 'us', 1e6)}")
    return bench.finish(
        [
            at_most("supervision of a step on a CPU rank, us", 1e6 * supervised_s, 150),
            at_most("vitals of a step, us, fastest group", 1e6 * min(writes_s), 2),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
