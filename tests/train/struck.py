"""A small training script in which numbers go wrong. Its first argument says which; the second is the number of steps.

What a strike decides it decides once in a run, unless it says otherwise, so a recovered run ends like ``nothing``.
Where a second one follows, everybody waits until the seat of the first has its new process, however long that takes.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))
import closeranks as cr
from small_training import LOOK_S, RUN, Numbers, once, two_layers, wait_until_known

SAMPLES, WIDTH = 600, 32
BAD_SAMPLES_STEP = 5
FIRST_PROCESSES = 3
WAIT_AFTER = {"two": 8, "full": 8, "spot": 4}
REPLACED = RUN / "replaced"  # written by the first process that came later, when it trains with the others


def flip(tensor: torch.Tensor, bit: int, index: int = 0) -> None:
    words = tensor.detach().view(-1).view(torch.int32)
    words[index] ^= 1 << bit


def in_gradient(model: nn.Module, change: Callable[[torch.Tensor], None]) -> None:
    """Change a gradient of this seat on its way to the reduction."""

    def strike(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.clone()
        change(changed)
        handle.remove()
        return changed

    handle = next(iter(model.parameters())).register_hook(strike)


def nan_once(job: cr.Job, model: nn.Module, _: torch.optim.Optimizer) -> None:
    if job.rank == 2 and once("nan"):
        in_gradient(model, lambda gradient: gradient.view(-1).__setitem__(3, float("nan")))


def weight_once(job: cr.Job, model: nn.Module, _: torch.optim.Optimizer) -> None:
    if job.rank == 1 and once("weight"):
        flip(next(iter(model.parameters())), 3, 17)


def moment_once(job: cr.Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if job.rank == 2 and once("moment"):
        flip(optimizer.state[next(iter(model.parameters()))]["exp_avg"], 20, 5)


def reduced_once(job: cr.Job, model: nn.Module, _: torch.optim.Optimizer) -> None:
    """After the reduction, in the gradient that is about to be applied."""
    if job.rank == 0 and once("reduced"):
        gradient = next(iter(model.parameters())).grad
        assert gradient is not None
        flip(gradient, 5)


def stubborn(job: cr.Job, model: nn.Module, _: torch.optim.Optimizer) -> None:
    """A device that computes nonsense each time, until the process is another one."""
    if job.rank == 1 and os.environ["CLOSERANKS_PROC"] == "2":
        in_gradient(model, lambda gradient: gradient.view(-1).__setitem__(3, float("inf")))


def activation_once(job: cr.Job, model: nn.Module, _: torch.optim.Optimizer) -> None:
    """One bit of the mantissa of one activation: finite, within its band, and the same on all replicas in the end."""
    if job.rank != 1 or not once("activation"):
        return

    def strike(_module: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        handle.remove()
        changed = output.clone()
        flip(changed, 20, 5)
        return changed

    handle = next(iter(model.children())).register_forward_hook(strike)


def stuck_bit(job: cr.Job, model: nn.Module, _: torch.optim.Optimizer) -> None:
    """A low bit of one gradient is one whenever the first process of seat 2 computes it."""

    def strike(gradient: torch.Tensor) -> None:
        gradient.view(-1).view(torch.int32)[:8] |= 1 << 2

    if os.environ["CLOSERANKS_PROC"] == "3":
        in_gradient(model, strike)


def dies_once(job: cr.Job, _model: nn.Module, _: torch.optim.Optimizer) -> None:
    """In the first attempt at its step, in which it computes what is another seat's."""
    if job.rank == 0 and once("death"):
        os._exit(3)


# By the step before whose forward pass, or after whose backward pass, they strike.
BEFORE = {
    "two": {6: nan_once, 9: weight_once},
    "full": {9: moment_once},
    "stubborn": {6: stubborn},
    "spot": {2: activation_once, 5: stuck_bit, 8: dies_once},
}
AFTER = {"full": {6: reduced_once}}
GUARDS = {
    "full": cr.Guard(level="full", digest_share=1.0),
    "stubborn": cr.Guard(elsewhere=True, digest_share=1.0),
    "spot": cr.Guard(recompute_share=1.0, digest_share=1.0),
}


def wait_for_replacement(job: cr.Job) -> None:
    with job.section("wait"):
        never = threading.Event()
        while not REPLACED.exists() and job.world.poison is None:
            never.wait(LOOK_S)


def main(what: str, steps: int) -> None:
    torch.set_num_threads(1)
    job = cr.join(seed=7, guard=GUARDS.get(what, cr.Guard(digest_share=1.0)))  # a digest in every step
    model, optimizer = two_layers(WIDTH)
    job.protect(model=model, optimizer=optimizer, batches=cr.Batches(Numbers(SAMPLES, WIDTH), global_batch=9, seed=3))
    for step in job.steps(until=steps):
        if int(os.environ["CLOSERANKS_PROC"]) > FIRST_PROCESSES and not step.rehearsal:
            REPLACED.touch()
        if step.number == 1 and not step.rehearsal:
            wait_until_known(job)
        with step:
            if what == "skipped" and step.number == BAD_SAMPLES_STEP:
                continue
            if strike := BEFORE.get(what, {}).get(step.number):
                strike(job, model, optimizer)
            loss = (model(step.batch) - step.batch).square().mean()
            if what == "data" and step.number == BAD_SAMPLES_STEP and job.rank == 2:
                loss = loss * float("nan")
            loss.backward()
            if strike := AFTER.get(what, {}).get(step.number):
                strike(job, model, optimizer)
            step.report(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        if WAIT_AFTER.get(what) == step.number:
            wait_for_replacement(job)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
