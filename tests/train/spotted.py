"""Training under spot checks with all that depends on the seat or the attempt: dropout, running means, micro-batches.

One bit in the middle of the mantissa of one gradient of one seat flips once, if ``STRIKE`` is set.
"""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr
from tests.train.guarded import WIDTH, Numbers

STEPS, STRUCK_STEP, STRUCK_SEAT = 6, 4, 1
SHARE = float(os.environ.get("SHARE", "1"))


def flip_once(parameter: nn.Parameter) -> None:
    def flip(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        wrong = gradient.clone()
        wrong.view(-1).view(torch.int32)[7] ^= 1 << 12
        return wrong

    handle = parameter.register_hook(flip)


def train(*, asks_for_the_rank: bool) -> None:
    torch.set_num_threads(1)
    job = cr.join(seed=7, guard=cr.Guard(recompute_share=SHARE))
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(), nn.Linear(WIDTH, WIDTH)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer, batches=cr.Batches(Numbers(), global_batch=9, seed=3))
    to_strike = "STRIKE" in os.environ and job.rank == STRUCK_SEAT
    closed = []
    for step in job.steps(until=STEPS):
        with step:
            if to_strike and step.number == STRUCK_STEP and not step.rehearsal:
                to_strike = False
                # Of two samples next to nothing flows back through running means, and dropout makes zeros: both would
                # be rounded away when the gradients of the second half are added.
                flip_once(list(model.parameters())[-1])
            for part in step.micro_batches(2):
                loss = (model(part.batch) - part.batch).square().mean() * part.weight
                (loss * (1 + job.rank) if asks_for_the_rank else loss).backward()
            step.report(loss=loss)
            step.on_close(lambda number=step.number: closed.append(number))
            optimizer.step()
            optimizer.zero_grad()
    assert closed == list(range(STEPS)), closed


def seatless() -> None:
    """What a seat computes depends on its batch and its random numbers alone."""
    train(asks_for_the_rank=False)


def ranked() -> None:
    """What a seat computes depends on the seat."""
    train(asks_for_the_rank=True)
