"""What the policy's parts do to real runs: batches that are split, canaries that fail, saves that are not trusted."""

import json

import pytest

from closeranks.events import (
    BatchesSplitFiner,
    CanaryFailed,
    CanaryPassed,
    CheckpointVerified,
    CorruptionCleared,
    CorruptionSuspected,
    Decided,
    RunEnded,
    Rung,
    StateLoaded,
)

pytestmark = pytest.mark.process

COMMON = """
import os, signal, sys, time
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

# After seat 1 was lost, losses are wrong until the group starts again.
WRONG = """
for step in job.steps(until=60):
    with step:
        loss = torch.nn.functional.mse_loss(model(step.batch[0]), step.batch[1])
        loss.backward()
        wrong = Path("lost").exists() and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        step.report(loss=50.0 if wrong else 1.0 + 0.01 * float(loss))
        if step.number == 20 and job.rank == 1 and not Path("lost").exists():
            Path("lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.02)
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


def test_a_recovery_that_did_not_work_goes_back_to_a_state_of_before_the_failure(start_run, tmp_path):
    store = tmp_path / "store"
    run = start_run(COMMON + WRONG, "--nproc-per-node", "2", "--store", str(store), "--save-every", "5")
    code, output = run.end(120)
    assert code == 0, output
    (failed,) = run.events(CanaryFailed)
    assert "loss 50" in failed.reason
    assert [e.rung for e in run.events(Decided)] == [Rung.FORK, Rung.ROLL_BACK]
    assert run.events(StateLoaded)[0].step < 20
    assert [e.source for e in (*run.events(CorruptionSuspected), *run.events(CorruptionCleared))] == ["canary"] * 2
    assert len(run.events(CanaryPassed)) == 1
    written_off = [e for e in run.events(CheckpointVerified) if "was not what it had been" in e.detail]
    assert written_off, "what was saved since the recovery is not restored by any later run"
    assert (store / "nodes.jsonl").exists()
    assert "Worked" in (store / "nodes.jsonl").read_text(encoding="utf-8")
    assert (store / "nodes.jsonl").stat().st_mode & 0o077 == 0
