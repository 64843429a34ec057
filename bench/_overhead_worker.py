"""The training run of bench/overhead.py; seat 0 writes what its steps took to OUT, as JSON, by block of steps.

``toggled`` switches supervision off and on in alternating blocks of steps, inside one process and one process group;
``guarded`` does so with the guard, under supervision. A block holds, for each of its steps, what it took (``s``) and
what all threads of the process computed in it (``cpu_s``), and for all of them together what the supervisor computed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, Corpus, loss_of

import closeranks as cr

CONTEXT = 32
WIDTH = 16  # of the smallest model: 289 parameters
STEPS_MAX = 1_000_000
SETTLED = 6  # a block counts from its sixth part on: the interpreter has to get used to what was switched
WARM_UP_BLOCKS = 2


class Points(Dataset[Tensor]):
    """Points and what is to be predicted of them, for the smallest model."""

    def __init__(self) -> None:
        self._rows = torch.randn(4096, WIDTH + 1, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensor:
        return self._rows[index]


def build(width: int, layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model on all sides: a GPT, or without layers two small products."""
    torch.manual_seed(0)
    if not layers:
        small = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        return DistributedDataParallel(small), torch.optim.SGD(small.parameters(), lr=1e-3)
    model = DistributedDataParallel(GPT(layers, width, CONTEXT, dropout=0.0))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    """One step on all sides."""
    loss = loss_of(model, batch) if batch.dtype == torch.int64 else squares(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean squared error of the points."""
    loss: Tensor = (model(batch[:, :WIDTH]) - batch[:, WIDTH:]).square().mean()
    return loss


class Shares:
    """Batches as a script draws them by itself."""

    def __init__(self, dataset: Any, global_batch: int, rank: int, size: int) -> None:
        self._dataset = dataset
        self._order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
        self._batch, self._share, self._rank = global_batch, global_batch // size, rank

    def of(self, step: int) -> Tensor:
        """This rank's part of a step."""
        first = step * self._batch + self._rank * self._share
        return torch.stack([self._dataset[self._order[(first + i) % len(self._order)]] for i in range(self._share)])


class Log:
    """What the steps took, and when it is enough."""

    def __init__(self, options: argparse.Namespace, supervisor: int | None) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._steps = options.block
        self._until_s = time.monotonic() + options.seconds
        # The clock of another process, as clock_getcpuclockid(3) makes it.
        self._beside = None if supervisor is None else (~supervisor << 3) | 2
        self._s: list[float] = []
        self._cpu_s: list[float] = []
        self.start()

    def start(self) -> None:
        """A step begins."""
        if not self._s:
            self._block_beside_s = self._beside_s()
        self._cpu_before_s = time.process_time()
        self._before_s = time.perf_counter()

    def step(self, *, on: bool) -> bool:
        """A step ended; whether it was the last one of a block."""
        self._s.append(time.perf_counter() - self._before_s)
        self._cpu_s.append(time.process_time() - self._cpu_before_s)
        if len(self._s) < self._steps:
            self.start()
            return False
        first = self._steps // SETTLED
        beside_s = (self._beside_s() - self._block_beside_s) / self._steps
        self.blocks.append({"on": on, "s": self._s[first:], "cpu_s": self._cpu_s[first:], "beside_s": beside_s})
        self._s, self._cpu_s = [], []
        return True

    def enough(self) -> bool:
        """Whether all ranks find together that the time is over."""
        over = torch.tensor([float(time.monotonic() >= self._until_s)])
        distributed.all_reduce(over)
        return bool(over.item())

    def _beside_s(self) -> float:
        return 0.0 if self._beside is None else time.clock_gettime(self._beside)


def under_closeranks(options: argparse.Namespace, dataset: Any) -> list[dict[str, Any]]:
    """Steps with the library; ``toggled`` and ``guarded``: with what they switch on in every second block only."""
    from _overhead_switches import Guarding, Supervision

    job = cr.join()
    model, optimizer = build(options.width, options.layers)
    batches = cr.Batches(dataset, global_batch=options.batch, seed=0)
    job.protect(model=model, optimizer=optimizer, batches=batches)
    switched = Guarding(job) if options.side == "guarded" else Supervision()
    toggles, on = options.side != "closeranks", True
    if toggles:
        switched.switch(on=on)
    log: Log | None = None
    for step in job.steps(until=STEPS_MAX):
        log = log or Log(options, os.getppid())  # the rehearsal is over
        with step:
            update(model, optimizer, step.batch)
        if not step.rehearsal and log.step(on=on):
            if toggles:
                on = not on
                switched.switch(on=on)
            if log.enough() and on:
                job.require_control().stop_after = step.number
            log.start()
    return log.blocks if log is not None and job.rank == 0 else []


def plain(options: argparse.Namespace, dataset: Any) -> list[dict[str, Any]]:
    """Steps of plain DDP, on data of the same shape."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model, optimizer = build(options.width, options.layers)
    shares = Shares(dataset, options.batch, rank, distributed.get_world_size())
    log = Log(options, None)
    for step in range(STEPS_MAX):
        update(model, optimizer, shares.of(step))
        if log.step(on=False):
            if log.enough():
                break
            log.start()
    return log.blocks if rank == 0 else []


def main() -> None:
    """Train on the side that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["toggled", "guarded", "closeranks", "plain"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--block", type=int, required=True, help="steps")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = Corpus(CONTEXT) if options.layers else Points()
    blocks = plain(options, dataset) if options.side == "plain" else under_closeranks(options, dataset)
    if blocks:
        options.out.write_text(json.dumps(blocks[WARM_UP_BLOCKS:]))


if __name__ == "__main__":
    main()
