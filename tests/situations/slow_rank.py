"""A training script of which one seat is slow: ``slow_rank.py WHERE STEPS SLOW_SEAT``; WHERE: data or forward.

What a step takes is slept, so that a busy machine changes little of it.
"""

from __future__ import annotations

import sys
import threading

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr

WIDTH, DATA_S, FORWARD_S, SLOWER = 16, 0.1, 0.2, 0.2  # long beside what a busy machine adds


def main(where: str, steps: int, slow_seat: int) -> None:
    torch.set_num_threads(1)
    job = cr.join(seed=7)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer)
    never = threading.Event()
    for step in job.steps(until=steps):
        slow_s = SLOWER * (DATA_S + FORWARD_S) if job.rank == slow_seat and step.number > 6 else 0.0
        with job.timer("data"):
            never.wait(DATA_S + (slow_s if where == "data" else 0.0))
        with step:
            with job.timer("forward"):
                never.wait(FORWARD_S + (slow_s if where == "forward" else 0.0))
                loss = model(torch.ones(2, WIDTH)).square().mean()
            loss.backward()
            step.report(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
