"""What it costs to look at a step before it is applied, and to digest the state now and then.

Norms and digests are measured in one process on tensors like those of a model with Adam; the exchange of thirteen words
between the seats in processes that meet over gloo. The default interval of digests follows from their measured time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from _common import Bench, at_most, spelled, surely_at_most

from closeranks.decide.suspicion import Guard
from closeranks.detect.corruption import digest_every
from closeranks.train.digest import digest, word_sum

STEP_S = 0.1
BAR = 0.005  # of the step
SEATS = 2
MODELS = {"0.25 M": (32, 88), "2.5 M": (48, 228), "10 M": (64, 395)}  # square matrices: how many, and their width
GROUPS, EXCHANGES = 20, 20


def timed_s(work: Callable[[], Any], rounds: int) -> float:
    """Median of the rounds."""
    return statistics.median(rounds_s(work, rounds))


def rounds_s(work: Callable[[], Any], rounds: int) -> list[float]:
    """Each of the rounds, after one to warm up."""
    work()
    taken = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began_s)
    return taken


def exchange(rank: int, port: int, results: Any) -> None:
    """Thirteen words from every seat to every seat, as before each update."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=SEATS)
    mine, every = torch.zeros(13, dtype=torch.int64), torch.zeros(13 * SEATS, dtype=torch.int64)
    groups = [rounds_s(lambda: dist.all_gather_into_tensor(every, mine), EXCHANGES) for _ in range(GROUPS)]
    if rank == 0:
        results.put(groups)
    dist.destroy_process_group()


def exchanged_s() -> list[list[float]]:
    """Seconds of exchanges between processes of this machine, in groups."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(exchange, args=(port, results), nprocs=SEATS)
    groups: list[list[float]] = results.get()
    return groups


def main() -> int:
    """Run it."""
    bench = Bench("digest_cost", __doc__)
    torch.set_num_threads(1)
    rounds = 10 if bench.options.quick else 40
    groups = exchanged_s()
    # A neighbour that takes the processor now and then does not reach the lower quartiles.
    lower_s = [statistics.quantiles(some)[0] for some in groups]
    words_s = statistics.median(one_s for some in groups for one_s in some)
    bench.say(f"exchange of thirteen words between {SEATS} seats: {words_s * 1e6:.0f} us")
    bench.say(f"  lower quartiles of {GROUPS} groups: {spelled(lower_s, 'us', 1e6)}")
    worst = 0.0
    bench.say(f"at a step of {STEP_S * 1e3:g} ms, one thread:")
    for name, (count, width) in MODELS.items():
        weights = [torch.randn(width, width) for _ in range(count)]
        state = [one.clone() for one in weights for _ in range(3)]  # parameter and two moments
        bucket = torch.cat([one.view(-1) for one in weights])
        size_gb = 4 * 3 * count * width * width / 1e9
        norm_s = timed_s(lambda bucket=bucket: torch.linalg.vector_norm(bucket), rounds)
        sum_s = timed_s(lambda state=state: word_sum(state), rounds)
        exact_s = timed_s(lambda state=state: digest((("x", one) for one in state), None), max(3, rounds // 10))
        every = digest_every(sum_s, STEP_S, Guard().digest_share)
        share = sum_s / every / STEP_S
        worst = max(worst, share)
        bench.say(
            f"  {name} parameters: norms {norm_s * 1e6:.0f} us ({norm_s / STEP_S:.2%}), word sum of the state "
            f"{sum_s * 1e3:.2f} ms ({sum_s / size_gb:.3f} s/GB; blake3 {exact_s / size_gb:.3f} s/GB), "
            f"every {every} steps: {share:.2%} of the time"
        )
    return bench.finish(
        [
            at_most("digests at the default interval, share of step time", worst, BAR),
            surely_at_most("exchange of evidence, share of step time", [one_s / STEP_S for one_s in lower_s], BAR),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
