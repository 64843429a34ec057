"""A tiny training job for several nodes. Every seat writes down each update as it begins to apply it.

``toy.py STEPS STEP_MS``. A line of ``applied/seat<k>`` in the run folder: step, term, pid, and the time at which
the update began. TOY_HOLD=STEP:FILE sits before that step until the file is there; several are joined by commas.
TOY_LINGER=STEP:FILE takes a second for that step and each later one, while the file is not there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr

WIDTH = 16
APPLIED = Path(os.environ["CLOSERANKS_RUN_DIR"]) / "applied"


class Numbers:
    """Sample ``index`` is the same on every rank."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def sit(job: cr.Job, until: Path) -> None:
    never = threading.Event()
    with job.section("evaluate"):
        while not until.exists():
            never.wait(0.02)


def linger(until: Path, most_s: float = 1.0) -> None:
    never, end_s = threading.Event(), time.monotonic() + most_s
    while not until.exists() and time.monotonic() < end_s:
        never.wait(0.02)


def write_down(job: cr.Job, step: int, began_s: float) -> None:
    APPLIED.mkdir(mode=0o700, exist_ok=True)
    line = f"{step} {job.world.term} {os.getpid()} {began_s!r}\n"
    fd = os.open(APPLIED / f"seat{job.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def main(steps: int, step_s: float) -> None:
    torch.set_num_threads(1)
    job = cr.join(seed=7)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer, batches=cr.Batches(Numbers(), global_batch=12, seed=3))
    began: list[float] = []

    def at_apply(*_: Any) -> None:
        began[:] = [time.monotonic()]

    optimizer.register_step_pre_hook(at_apply)  # after the library's own, which refuses what may not be applied
    never = threading.Event()
    slow_from, _, until = os.environ.get("TOY_LINGER", f"{steps}:").partition(":")
    holds = dict(hold.split(":", 1) for hold in os.environ.get("TOY_HOLD", "-1:").split(","))
    for step in job.steps(until=steps):
        if str(step.number) in holds and not step.rehearsal:
            sit(job, Path(holds[str(step.number)]))
        with step:
            never.wait(step_s)
            if step.number >= int(slow_from):
                linger(Path(until))
            loss = (model(step.batch) - step.batch).square().mean()
            loss.backward()
            step.report(loss=loss)
            optimizer.step()
            if not step.rehearsal:
                write_down(job, step.number, began[0])
            optimizer.zero_grad()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) / 1000)
