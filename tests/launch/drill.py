"""The drill for every launcher: a small script trains on two nodes, one of them is killed, a spare node takes over.

All nodes are on this machine. Killing a node is SIGKILL to its guardian, its supervisor and all below them at once, or
to its guardian alone, as where the connection is cut by which it was started.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.real_run import eventually

from closeranks.events import RunStarted, StepClosed
from closeranks.journal import read
from closeranks.run.descendants import descendants, read_stat, read_table

STEPS = 40
STRIKE_AT_STEP = 5
NODES, SPARES = 2, 1

# Every rank draws the same batch: the mean of equal gradients is the gradient itself, so one process ends with the same
# weights, bit for bit, as any number of ranks.
_MODEL = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(16, 4)

def loss_of(model, step):
    return model(torch.randn(8, 16, generator=torch.Generator().manual_seed(step))).square().mean()
"""
SCRIPT = f"""
import sys, time
from pathlib import Path
import closeranks as cr
from torch.nn.parallel import DistributedDataParallel
job = cr.join()
{_MODEL}
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job.protect(model=model, optimizer=optimizer)
for step in job.steps(until={STEPS}):
    with step:
        time.sleep(0.05)  # long enough to be struck
        loss = loss_of(model, step.number)
        loss.backward()
        step.report(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
weights = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
Path(sys.argv[1], f"weights-{{job.rank}}").write_bytes(weights)
"""


def write_script(folder: Path) -> Path:
    """The script; its one argument is the folder where each rank leaves its weights."""
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


def events(folder: Path, run: str, node_rank: int) -> list:
    """The journal of a node of that run, started in ``folder``, so far."""
    journals = folder.glob(f"runs/{run}-n{node_rank}-*/journal.jsonl")
    return [record.event for path in journals for record in read(path).records]


def expected_weights() -> bytes:
    """Those of an undisturbed training in this process."""
    import torch

    space: dict = {}
    exec(_MODEL, space)  # noqa: S102 - the text above
    optimizer = torch.optim.SGD(space["model"].parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        space["loss_of"](space["model"], step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return b"".join(value.detach().numpy().tobytes() for value in space["model"].parameters())


def strike(folder: Path, *, only_guardian: bool = False, within_s: float = 150.0) -> None:
    """Kill a node that holds a seat and does not lead, once it has closed steps of the run started in ``folder``."""

    def seated() -> list[int]:
        # A node that starts late finds its seat taken by the spare node, and is the spare node itself.
        return [rank for rank in range(1, NODES + SPARES) if _newest_step(folder, rank) >= STRIKE_AT_STEP]

    assert eventually(seated, within_s), told(folder)
    started = next(event for event in _events(folder, seated()[0]) if isinstance(event, RunStarted))
    supervisor = read_stat(started.pid)
    assert supervisor is not None
    guardian = supervisor.parent
    below = [] if only_guardian else [stat.pid for stat in descendants(guardian, read_table())]
    for pid in (guardian, *below):  # the guardian first, so that nobody is left to end the others in order
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def require_recovered(folder: Path) -> None:
    """All ranks have ended with the weights of an undisturbed training."""
    found = [path.read_bytes() for path in sorted(folder.glob("weights-*"))]
    assert len(found) == NODES, told(folder)
    assert set(found) == {expected_weights()}


def _events(folder: Path, node_rank: int) -> list:
    journals = sorted(folder.glob(f"runs/*-n{node_rank}-*/journal.jsonl"))
    return [record.event for path in journals[:1] for record in read(path).records]


def _newest_step(folder: Path, node_rank: int) -> int:
    return max((event.step for event in _events(folder, node_rank) if isinstance(event, StepClosed)), default=-1)


def told(folder: Path) -> str:
    """What was printed there."""
    return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("*.out")))
