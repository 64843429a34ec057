"""Training under the guard in ways that are not plain DDP.

A gradient of one seat goes wrong once, if ``STRIKE`` is set. The process that computed it repeats the step, so once in
a process is once in a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr
from closeranks.train.bucket_hooks import trimmed_mean_hook

WIDTH, STEPS, STRUCK_STEP, STRUCK_SEAT = 32, 10, 6, 1
BAD = float("nan")


class Numbers:
    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def strike_backward(output: torch.Tensor) -> None:
    """Make what flows back from here wrong, this once."""

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        wrong = gradient.clone()
        wrong.view(-1)[3] = BAD
        return wrong

    handle = output.register_hook(spoil)


def train(
    build: Callable[[], nn.Module],
    guard: cr.Guard,
    *,
    scaler: torch.amp.GradScaler | None = None,
    loss_factor: float = 1.0,
    after_backward: Callable[[Iterable[nn.Parameter]], None] | None = None,
) -> None:
    torch.set_num_threads(1)
    job = cr.join(seed=7, guard=guard)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer, batches=cr.Batches(Numbers(), global_batch=6, seed=3))
    if scaler is not None:
        job.protect(scaler=scaler)
    scale = scaler or torch.amp.GradScaler("cpu", enabled=False)
    to_strike = "STRIKE" in os.environ and job.rank == STRUCK_SEAT
    for step in job.steps(until=STEPS):
        with step:
            output = model(step.batch)
            strikes = to_strike and step.number == STRUCK_STEP and not step.rehearsal
            to_strike = to_strike and not strikes
            if strikes and after_backward is None:
                strike_backward(output)
            loss = (output - step.batch).square().mean()
            scale.scale(loss * loss_factor).backward()
            if strikes and after_backward is not None:
                after_backward(model.parameters())
            step.report(loss=loss)
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()


def hook() -> None:
    """Gradients that are halved in width on their way."""

    def build() -> nn.Module:
        model = DistributedDataParallel(net())
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return model

    train(build, cr.Guard())


def robust_hook() -> None:
    """Gradients that are gathered instead of reduced."""

    def build() -> nn.Module:
        model = DistributedDataParallel(net())
        model.register_comm_hook(0, trimmed_mean_hook)
        return model

    train(build, cr.Guard())


def sharded() -> None:
    """FSDP2: gradients are scattered while they are reduced, and with replicas reduced once more after that."""

    def build() -> nn.Module:
        model = net()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    train(build, cr.Guard())


def scaled() -> None:
    """A scaler whose first steps overflow, and the squares of its gradients in all steps.

    What goes wrong is in a gradient that was reduced already.
    """

    def flip(parameters: Iterable[nn.Parameter]) -> None:
        gradient = next(iter(parameters)).grad
        assert gradient is not None
        gradient.view(-1).view(torch.int32)[5] ^= 1 << 5

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=100)
    guard = cr.Guard(level="full")
    train(lambda: DistributedDataParallel(net()), guard, scaler=scaler, loss_factor=16.0, after_backward=flip)
