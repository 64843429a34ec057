"""A training script whose recovery does not work: after a loss its losses are wrong until the whole group starts again.

It goes on by what the test has seen, told by files in the run folder: seat 1 ends when ``saved`` is there, and the run
hurries to its end when ``passed`` is. Nobody waits for a moment that may be missed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr

RUN = Path(os.environ["CLOSERANKS_RUN_DIR"])
SAVED, LOST, PASSED = RUN / "saved", RUN / "lost", RUN / "passed"
LEAST_STEPS, WRONG_LOSS, STEP_S, LOOK_S = 8, 50.0, 0.02, 0.02


class Numbers:
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.sin(torch.arange(8) * (index + 1.0))


def main(steps: int) -> None:
    torch.set_num_threads(1)
    job = cr.join(seed=3)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    job.protect(model=model, optimizer=optimizer, batches=cr.Batches(Numbers(), global_batch=8, seed=1))
    first_group = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    never = threading.Event()
    for step in job.steps(until=steps):
        with step:
            loss = (model(step.batch) - step.batch).square().mean()
            loss.backward()
            wrong = first_group and LOST.exists()
            step.report(loss=WRONG_LOSS if wrong else 1.0 + 0.01 * float(loss))
            if job.rank == 1 and step.number >= LEAST_STEPS and SAVED.exists() and not LOST.exists():
                LOST.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            optimizer.zero_grad()
        if not PASSED.exists():
            never.wait(STEP_S)
        awaited = {steps // 2: SAVED, steps - 2: PASSED}.get(step.number)
        with job.section("wait"):
            while awaited is not None and not awaited.exists():
                never.wait(LOOK_S)


if __name__ == "__main__":
    main(int(sys.argv[1]))
