"""Stragglers: how soon one is named, and how often a process that is none.

    python bench/straggler.py [--quick] [--json]

Own times are drawn from a seed: normal, with the jitter named, on steps whose length varies between a half and one
and a half for all alike. For each jitter: 1,000 windows of eight processes without a straggler (quick: the same), and
how many steps pass until a process that is 15 % slower is named, of 200 runs (quick: 50) that were clean for 22 to 41
steps before. Beside it, on the same windows, the two rules that it is made of, each by itself: robust z above 3.5 in
one window, and the ratio to the fastest below 0.75, as a published detector has it. Then trace ST, played again.
"""

from __future__ import annotations

import csv
import io
import lzma
import random
import statistics
import sys
import time
from pathlib import Path

from _common import Bench, at_least, at_most

from closeranks.detect import straggler, what_if
from closeranks.detect.straggler import Slow, Step, Watch

PROCESSES, SLOWER, WITHIN_STEPS, WINDOWS = 8, 0.15, 30, 1000
JITTERS = (0.02, 0.05, 0.10, 0.15)
PATIENCE_STEPS = 600
TRACE = Path(__file__).parents[1] / "tests" / "detect" / "data" / "straggler_trace_st.csv.xz"
TRACE_SLOWDOWN = 1.1787021836556841  # of its result file


def step(draw: random.Random, jitter: float, slower: float = 0.0) -> Step:
    """Process 0 may be slower."""
    length = draw.uniform(0.5, 1.5)
    return Step(
        own_s={
            p: length * max(0.01, draw.gauss(1, jitter)) * (1 + (slower if p == 0 else 0.0)) for p in range(PROCESSES)
        }
    )


def named_after(jitter: float, seed: int) -> int | None:
    """Steps from the first slow one until process 0 is named; None: it was not, or somebody else was."""
    draw, watch = random.Random(seed), Watch()
    for _ in range(22 + seed % 20):
        watch, _ = straggler.observe(watch, step(draw, jitter))
    for count in range(1, PATIENCE_STEPS + 1):
        watch, found = straggler.observe(watch, step(draw, jitter, SLOWER))
        for finding in found:
            if isinstance(finding, Slow):
                return count if set(finding.slower) == {0} else None
    return None


def clean(jitter: float, seed: int) -> tuple[int, int, int, int]:
    """Windows with somebody named; with z alone above its bound; with the ratio alone below its own; steps of one."""
    draw, watch = random.Random(seed), Watch()
    named = beyond_z = below_ratio = steps = 0
    for _ in range(WINDOWS):
        window = watch.windows[-1:]
        while watch.windows[-1:] == window:
            watch, found = straggler.observe(watch, step(draw, jitter))
            named += sum(isinstance(finding, Slow) for finding in found)
            steps += 1
        own_s = [statistics.median(draw.gauss(1, jitter) for _ in range(5)) for _ in range(PROCESSES)]
        middle_s = statistics.median(own_s)
        spread_s = 1.4826 * statistics.median(abs(s - middle_s) for s in own_s)
        beyond_z += any((s - middle_s) / spread_s > 3.5 for s in own_s)
        below_ratio += any(min(own_s) / s < 0.75 for s in own_s)
    return named, beyond_z, below_ratio, steps // WINDOWS


def slowdown_of_trace() -> float:
    """What the play of the trace comes to."""
    rows = csv.DictReader(io.StringIO(lzma.decompress(TRACE.read_bytes()).decode()))
    return what_if.slowdown(
        [
            what_if.Operation(
                int(row["step"]),
                int(row["replica"]),
                int(row["stage"]),
                row["kind"],
                int(row["number"]),
                float(row["start_s"]),
                float(row["duration_s"]),
            )
            for row in rows
        ]
    )


def main() -> int:
    """Print the table, then the bars."""
    bench = Bench("straggler", __doc__ or "")
    runs = 50 if bench.options.quick else 200
    bench.say(f"{PROCESSES} processes, one {SLOWER:.0%} slower; {WINDOWS} clean windows")
    bench.say("jitter  named: p50  p99  never  in 30 | clean windows with: a name  z alone  ratio alone  steps each")
    bars = []
    for jitter in JITTERS:
        waits = [named_after(jitter, bench.options.seed + seed) for seed in range(runs)]
        known = sorted(wait for wait in waits if wait is not None)
        in_time = sum(wait <= WITHIN_STEPS for wait in known)
        named, beyond_z, below_ratio, steps = clean(jitter, bench.options.seed)
        p50, p99 = (known[int(share * (len(known) - 1))] if known else 0 for share in (0.5, 0.99))
        bench.say(
            f"{jitter:6.0%}  {p50:10} {p99:4} {runs - len(known):6} {in_time / runs:6.1%} |"
            f" {named:27} {beyond_z:8} {below_ratio:12} {steps:11}"
        )
        if jitter <= 0.05:
            bars.append(at_least(f"named within 30 steps at {jitter:.0%} jitter, share", in_time / runs, 0.99))
        bars.append(at_most(f"named in {WINDOWS} clean windows at {jitter:.0%} jitter", named, 0))
    draw, watch, began_s = random.Random(0), Watch(), time.process_time()
    for _ in range(500):
        watch, _ = straggler.observe(watch, step(draw, 0.02))
    bars.append(at_most("processor time of one step of 8, us", (time.process_time() - began_s) / 500 * 1e6, 500))
    found = slowdown_of_trace()
    bench.say(f"trace ST: slowdown {found:.4f}, {TRACE_SLOWDOWN:.4f} in its result file")
    bars.append(at_most("distance from the slowdown of trace ST", abs(found / TRACE_SLOWDOWN - 1), 1e-3))
    return bench.finish(bars)


if __name__ == "__main__":
    sys.exit(main())
