"""An ordinary torch.distributed script: it knows nothing of closeranks.

    closeranks run --nproc-per-node 4 examples/plain_ddp.py
    torchrun --nproc-per-node 4 examples/plain_ddp.py

Under ``closeranks run`` it gets supervision, budgets and cold restarts of the whole group.
"""

from __future__ import annotations

import argparse
import time

import torch
from gpt import GPT, Corpus, loss_of
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train from the beginning; rank 0 prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--context", type=int, default=48)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    train(options)
    # Not before the model is gone: it holds the group, and whoever lets go of it last waits for gloo's threads, which
    # may be waiting for the interpreter's lock that the model's end keeps.
    distributed.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    """All steps."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    model = DistributedDataParallel(GPT(options.layers, options.width, options.context))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    corpus = Corpus(options.context)
    share = options.batch // size
    for step in range(options.steps):
        began_s = time.perf_counter()
        first = step * options.batch + rank * share
        batch = torch.stack([corpus[(first + i) % len(corpus)] for i in range(share)])
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} {(time.perf_counter() - began_s) * 1000:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
