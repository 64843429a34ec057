"""The training run of bench/overhead.py; seat 0 writes the time of every step to OUT as JSON.

``toggled`` switches supervision off and on in alternating blocks of steps, inside one process and one process group;
``guarded`` does so with the guard, under supervision, and ``checked`` with spot checks of all steps. ``s`` is what a
step took, ``cpu_s`` what all threads of the process computed in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, Corpus, loss_of

import closeranks as cr

CONTEXT = 32
BLOCK_STEPS = 10  # short enough that drift of the machine hits both sides of a toggle alike
SKIPPED = 2 * BLOCK_STEPS  # warm-up


def build(width: int, layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model on all sides."""
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(layers, width, CONTEXT, dropout=0.0))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    """One step on all sides."""
    loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


class Supervision:
    """Takes everything that the library does in a step out of a job, and puts it back.

    What stays on both sides is torch's own way into a Python process group; the ratio against plain DDP has it too.
    """

    def __init__(self) -> None:
        from closeranks.train.group import OuterGroup
        from closeranks.train.steps import Loop

        def run(group: Any, _operation: str, _result: Any, call: Any) -> Any:
            return call(group.inner.cpu)

        def opened(loop: Any, step: Any) -> None:
            step.batch = loop.job.batches.fetch(step.number, loop.world.seat, loop.world.size)

        def left(loop: Any, step: Any, _error: BaseException | None) -> bool:
            loop.closed = step.number
            return False

        self._parts = {
            (OuterGroup, "_run"): (vars(OuterGroup)["_run"], run),
            (Loop, "open"): (Loop.open, opened),
            (Loop, "leave"): (Loop.leave, left),
        }

    def switch(self, *, on: bool) -> None:
        """Supervise the next step, or do not."""
        for (owner, name), (supervised, bare) in self._parts.items():
            setattr(owner, name, supervised if on else bare)


GUARDS = {
    "guarded": (cr.Guard(level="off"), cr.Guard()),
    "checked": (cr.Guard(), cr.Guard(recompute_share=1.0)),
}


class Guarding:
    """Watches attempts before they are applied in one of two ways."""

    def __init__(self, job: cr.Job, side: str) -> None:
        self._held = job.held
        self._guards = GUARDS[side]

    def switch(self, *, on: bool) -> None:
        """In the second way from the next step on, or in the first."""
        self._held.guard = self._guards[on]


def under_closeranks(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Steps with the library; all other sides: with what they switch on in every second block only."""
    job = cr.join()
    model, optimizer = build(options.width, options.layers)
    batches = cr.Batches(Corpus(CONTEXT), global_batch=options.batch, seed=0)
    job.protect(model=model, optimizer=optimizer, batches=batches)
    times: list[dict[str, Any]] = []
    switched = Guarding(job, options.side) if options.side in GUARDS else Supervision()
    before_s, before_cpu_s = time.perf_counter(), time.process_time()
    for step in job.steps(until=options.steps):
        block = step.number // BLOCK_STEPS
        if options.side != "closeranks":
            switched.switch(on=block % 2 == 1)
        with step:
            update(model, optimizer, step.batch)
        now_s, cpu_s = time.perf_counter(), time.process_time()
        took = {"s": now_s - before_s, "cpu_s": cpu_s - before_cpu_s}
        if times and times[-1]["step"] == step.number:  # a further attempt at it
            before = times.pop()
            took = {clock: before[clock] + more for clock, more in took.items()}
        times.append({"step": step.number, "block": block, "on": block % 2 == 1, **took})
        before_s, before_cpu_s = now_s, cpu_s
    switched.switch(on=options.side not in GUARDS)
    return times if job.rank == 0 else []


def plain(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Steps of plain DDP, on data of the same shape, drawn the same way."""
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    model, optimizer = build(options.width, options.layers)
    corpus, share = Corpus(CONTEXT), options.batch // size
    order = torch.randperm(len(corpus), generator=torch.Generator().manual_seed(0)).tolist()
    times: list[dict[str, Any]] = []
    before_s = time.perf_counter()
    for step in range(options.steps):
        first = step * options.batch + rank * share
        update(model, optimizer, torch.stack([corpus[order[first + i]] for i in range(share)]))
        now_s = time.perf_counter()
        times.append({"step": step, "block": step // BLOCK_STEPS, "on": False, "s": now_s - before_s})
        before_s = now_s
    return times if rank == 0 else []


def main() -> None:
    """Train on the side that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["toggled", *GUARDS, "closeranks", "plain"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    times = plain(options) if options.side == "plain" else under_closeranks(options)
    if times:
        options.out.write_text(json.dumps(times[SKIPPED:]))


if __name__ == "__main__":
    main()
