"""What robust averages cost beside the mean: the arithmetic on one bucket, and the bytes that each rank receives.

A ring all-reduce moves twice the bucket through every rank; a robust average needs every rank's bucket on every rank.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from _common import Bench, at_least

from closeranks.train.bucket_hooks import krum, trimmed_mean

BUCKET = 2**20  # values: 4 MiB, a sixth of DDP's bucket
RANKS = 8


def timed_s(work: Callable[[], object], rounds: int) -> float:
    """Median of the rounds."""
    taken = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)


def main() -> int:
    """Run it."""
    bench = Bench("robust", __doc__)
    torch.set_num_threads(1)
    rounds = 3 if bench.options.quick else 10
    honest = torch.randn(RANKS, BUCKET, generator=torch.Generator().manual_seed(0)) * 0.1 + 1.0
    bad = honest.clone()
    bad[3] *= -10
    target = honest.mean(dim=0)
    averages: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "mean": lambda every: every.mean(dim=0),
        "trimmed mean (1)": lambda every: trimmed_mean(every, 1),
        "median": lambda every: trimmed_mean(every, (RANKS - 1) // 2),
        "Krum (1)": lambda every: every[krum(every, 1)],
    }
    mean_s = timed_s(lambda: averages["mean"](honest), rounds)
    errors = {}
    for name, average in averages.items():
        taken_s = timed_s(lambda average=average: average(honest), rounds)
        clean, errors[name] = (float((average(x) - target).norm() / target.norm()) for x in (honest, bad))
        bench.say(
            f"{name:17} {taken_s * 1e3:8.1f} ms a bucket of {BUCKET * 4 / 2**20:g} MiB ({taken_s / mean_s:.1f} x the "
            f"mean), error {clean:.3f} without, {errors[name]:.3f} with one bad rank of {RANKS}"
        )
    bench.say(
        f"bytes received by each rank: {(RANKS - 1) / (2 * (RANKS - 1) / RANKS):.1f} x those of a ring all-reduce"
    )
    worst = max(error for name, error in errors.items() if name != "mean")
    return bench.finish(
        [at_least("error of the mean over that of the worst robust average", errors["mean"] / worst, 2)]
    )


if __name__ == "__main__":
    raise SystemExit(main())
