"""A training script whose state is of every kind that a checkpoint must carry.

The environment says what else happens: LASTING_HOLD=N sits before step N until the file "go" is in the run folder,
LASTING_KIND=sharded trains with FSDP2 in place of DDP.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr

WIDTH = 32
POLL_S = 0.02
STEP_S = 0.06  # a save is asked for a few steps ahead: the run must not be over by then
BEFORE_HOLD_S = 0.2  # nor sit before HOLD, though the machine stops for a second
HOLD = int(os.environ.get("LASTING_HOLD", "-1"))
SHARDED = os.environ.get("LASTING_KIND") == "sharded"


class Numbers:
    """Sample ``index`` is the same on every rank; its noise is drawn from the generators of the process."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        clean = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
        return clean + 0.1 * torch.randn(WIDTH) + 0.01 * float(np.random.rand())


class Curriculum:
    """State that is neither a tensor nor of torch: which document, how hard, and what was seen lately."""

    def __init__(self) -> None:
        self.document = 0
        self.hardness = 0.1
        self.lately: list[int] = []
        self.table = np.zeros(4, dtype=np.float64)

    def step(self, number: int) -> None:
        self.document = (self.document * 31 + number) % 1009
        self.hardness *= 1.01
        self.lately = [*self.lately[-3:], number]
        self.table[number % 4] += self.hardness

    def state_dict(self) -> dict[str, Any]:
        return {
            "document": self.document,
            "hardness": self.hardness,
            "lately": self.lately,
            "table": self.table,
            "nested": {"limit": float("inf"), "name": "all", "pairs": ((1, 2), (3, 4))},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.document, self.hardness = state["document"], state["hardness"]
        self.lately, self.table = list(state["lately"]), np.array(state["table"])
        assert state["nested"] == {"limit": float("inf"), "name": "all", "pairs": ((1, 2), (3, 4))}


class Position:
    """State of one seat alone."""

    def __init__(self) -> None:
        self.at = 0

    def step(self, batch: torch.Tensor) -> None:
        self.at += int(batch.abs().sum() * 1000) % 97  # each seat has other samples

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def net() -> nn.Module:
    torch.manual_seed(0)
    if SHARDED:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH)
    )


def main(steps: int) -> None:
    torch.set_num_threads(1)
    job = cr.join(seed=7)
    inner = net()
    first, *_, last = list(inner.parameters())
    first.requires_grad_(SHARDED)  # a frozen layer
    if SHARDED:
        fully_shard(inner)
        model = inner
    else:
        model = DistributedDataParallel(inner, broadcast_buffers=False)
    first, *_, last = list(inner.parameters())  # sharding has replaced them
    rest = [p for p in inner.parameters() if p is not first and p is not last]
    groups = [{"params": [first], "lr": 0.0}, {"params": rest, "name": "middle"}, {"params": [last], "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    curriculum, position = Curriculum(), Position()
    job.protect(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        curriculum=curriculum,
        batches=cr.Batches(Numbers(), global_batch=8, seed=3),
        local={"position": position},
    )
    never = threading.Event()
    for step in job.steps(until=steps):
        if step.number == HOLD and not step.rehearsal:
            with job.section("evaluate"):
                while not (Path(os.environ["CLOSERANKS_RUN_DIR"]) / "go").exists():
                    never.wait(POLL_S)
        with step:
            never.wait(BEFORE_HOLD_S if step.number < HOLD else STEP_S)
            loss = (model(step.batch) - step.batch).square().mean() * (1 + curriculum.hardness)
            loss.backward()
            step.report(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            curriculum.step(step.number)
            position.step(step.batch)


if __name__ == "__main__":
    main(int(sys.argv[1]))
