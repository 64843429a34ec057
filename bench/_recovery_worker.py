"""The training run of bench/recovery.py: the same model, data, update and log under every launcher.

Every rank appends a line ``step pid monotonic_s`` to LOG/rank<k> when a step is complete there.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, Corpus, loss_of

SEATS = 4
CONTEXT = 64
GLOBAL_BATCH = 16
LAYERS, WIDTH = 6, 256  # 4.9 million parameters


def build(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model on all sides."""
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(LAYERS, WIDTH, CONTEXT).to(device))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    """One step on all sides."""
    loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def write_down(folder: Path, rank: int, step: int) -> None:
    """A complete step, in one write."""
    line = f"{step} {os.getpid()} {time.monotonic()!r}\n"
    fd = os.open(folder / f"rank{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def under_closeranks(folder: Path, steps: int) -> None:
    """With the library."""
    import closeranks as cr

    job = cr.join()
    model, optimizer = build(job.device)
    batches = cr.Batches(Corpus(CONTEXT), global_batch=GLOBAL_BATCH, seed=0)
    job.protect(model=model, optimizer=optimizer, batches=batches)
    for step in job.steps(until=steps):
        with step:
            update(model, optimizer, step.batch)
            step.on_close(functools.partial(_write_down_seat, folder, job, step.number))


def _write_down_seat(folder: Path, job: object, step: int) -> None:
    write_down(folder, job.rank, step)  # type: ignore[attr-defined]  # a spare's rank is known once it is seated


def plain(folder: Path, steps: int) -> None:
    """Without it: from the beginning after every restart, which is the fastest that a restart can be."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model, optimizer = build(torch.device("cpu"))
    corpus, share = Corpus(CONTEXT), GLOBAL_BATCH // SEATS
    for step in range(steps):
        first = step * GLOBAL_BATCH + rank * share
        batch = torch.stack([corpus[(first + i) % len(corpus)] for i in range(share)])
        update(model, optimizer, batch)
        write_down(folder, rank, step)


def average(manager: Any, gradients: list[Tensor]) -> None:
    """One all-reduce over all gradients."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    manager.allreduce(flat).wait()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def under_torchft(folder: Path, steps: int) -> None:
    """With torchft, every rank a replica of its own; its averaging by hand, since its DDP asserts when a peer dies."""
    from torchft import Manager, Optimizer, ProcessGroupGloo

    rank = int(os.environ["REPLICA_GROUP_ID"])
    torch.manual_seed(0)
    model = GPT(LAYERS, WIDTH, CONTEXT)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        replica_id=f"rank{rank}",
        init_sync=False,
    )
    optimizer = Optimizer(manager, inner)
    corpus, share = Corpus(CONTEXT), GLOBAL_BATCH // SEATS
    while (step := manager.current_step()) < steps:
        first = step * GLOBAL_BATCH + rank * share
        batch = torch.stack([corpus[(first + i) % len(corpus)] for i in range(share)])
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        average(manager, [p.grad for p in model.parameters() if p.grad is not None])
        optimizer.step()
        if manager.current_step() > step:  # committed, not dropped
            write_down(folder, rank, manager.current_step())


SIDES = {"closeranks": under_closeranks, "plain": plain, "torchft": under_torchft}


def main() -> None:
    """Train on the side that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=list(SIDES))
    parser.add_argument("log", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    SIDES[options.side](options.log, options.steps)


if __name__ == "__main__":
    main()
