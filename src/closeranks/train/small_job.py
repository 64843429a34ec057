"""What the drill matrix trains by default: a model of 161 parameters that learns a sum, and takes its time for it.

A step waits where an accelerator would compute, so that several seats on few cores are as even as on their own devices.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr

_WIDTH = 8
_SAMPLES = 256


class Sums:
    """Random vectors and their sums."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.randn(_WIDTH, generator=torch.Generator().manual_seed(index))
        return values, values.sum()[None]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds that a step waits")
    parser.add_argument("--recompute-share", type=float, default=0.0, help="of the steps that are computed twice")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # In every step, however short: the steps between two digests would have a corrupt replica's gradients in them.
    job = cr.join(guard=cr.Guard(digest_share=1.0, recompute_share=options.recompute_share))
    torch.manual_seed(0)
    layers = [torch.nn.Linear(_WIDTH, 2 * _WIDTH), torch.nn.Tanh(), torch.nn.Linear(2 * _WIDTH, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(job.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = cr.Batches(Sums(), global_batch=12)

    job.protect(model=model, optimizer=optimizer, batches=batches)
    for step in job.steps(until=options.steps):
        with step:
            values, sums = step.batch
            time.sleep(options.step_s)
            loss = (model(values.to(job.device)) - sums.to(job.device)).square().mean()
            loss.backward()
            step.report(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
