"""The training run of bench/freeze.py: steps of about 100 ms that use little of the machine, jittered if asked."""

from __future__ import annotations

import argparse
import random
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr

STEP_S = 0.1


def main() -> None:
    """Train a model that is small, and slow on purpose."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--jitter", type=int, help="seed of slow steps and pauses")
    options = parser.parse_args()
    torch.set_num_threads(1)
    job = cr.join()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(16, 16) for _ in range(8)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job.protect(model=model, optimizer=optimizer)
    for step in job.steps(until=options.steps):
        slower = Jitter(options.jitter, step.number, options.steps)
        with step:
            time.sleep(STEP_S * slower.factor(job.rank if slower.any else 0, job.size))
            loss = model(torch.full((2, 16), 0.1 + step.number / 1000)).square().mean()
            loss.backward()
            step.report(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        if slower.pause:
            time.sleep(1.0)  # unlabelled: a garbage collection, a slow disk, a log upload
        if slower.save:
            with job.section("save"):
                time.sleep(5.0)


class Jitter:
    """What a step does out of the ordinary: the same on all seats for the same seed."""

    def __init__(self, seed: int | None, step: int, steps: int) -> None:
        draw = random.Random(f"{seed}/{step}")
        self.any = seed is not None and draw.random() < 0.05
        self._seat = draw.random()
        whole = random.Random(f"{seed}")
        self.pause = seed is not None and step == whole.randrange(10, steps)
        self.save = seed is not None and step == whole.randrange(10, steps)

    def factor(self, seat: int, size: int) -> float:
        """10 on the one seat that is slow in this step."""
        return 10.0 if self.any and seat == int(self._seat * size) else 1.0


if __name__ == "__main__":
    main()
