"""What is done about exhausted memory in real runs: batches are split finer."""

import json

import pytest

from closeranks.events import (
    BatchesSplitFiner,
    RunEnded,
)

pytestmark = pytest.mark.process

COMMON = """
import os, signal, sys, time
from pathlib import Path
import torch
import closeranks as cr
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
job = cr.join(seed=3)
torch.manual_seed(0)

class Data:
    def __len__(self): return 4096
    def __getitem__(self, index):
        x = torch.sin(torch.arange(8) * (index + 1))
        return x, x.sum()[None]

model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches = cr.Batches(Data(), global_batch=16, seed=1)
job.protect(model=model, optimizer=optimizer, batches=batches)
"""

# A part of more than ``limit`` samples does not fit into memory.
SPLITS = """
limit = int(sys.argv[1])
for step in job.steps(until=12):
    with step:
        for part in step.micro_batches(job.accumulation(1)):
            if step.number >= 6 and len(part.batch[0]) > limit:
                raise MemoryError(f"{len(part.batch[0])} samples do not fit")
            loss = torch.nn.functional.mse_loss(model(part.batch[0]), part.batch[1]) * part.weight
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print("weights", [float(w) for w in model.module.weight.detach().flatten()])
"""


def weights_of(output):
    return [json.loads(line.split("weights ", 1)[1]) for line in output.splitlines() if "weights " in line]


def test_a_run_whose_memory_is_exhausted_goes_on_with_smaller_parts_to_the_same_weights(start_run):
    options = ("--nproc-per-node", "2", "--view", "text")
    runs = [start_run(COMMON + SPLITS, *options, arguments=(limit,)) for limit in ("8", "2")]
    (whole, split) = [run.end(120)[1] for run in runs]
    assert runs[0].events(BatchesSplitFiner) == []
    assert [e.finer for e in runs[1].events(BatchesSplitFiner)] == [2, 4]
    assert runs[1].events(RunEnded)[0].outcome == "completed", split
    assert weights_of(split)[0] == pytest.approx(weights_of(whole)[0], rel=1e-5)
