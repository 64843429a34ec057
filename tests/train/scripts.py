"""Training scripts that the tests run in worker processes."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import closeranks as cr

STEPS = 12


class Net(nn.Module):
    def __init__(self, width: int = 32, norm: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=dropout)
        self.body = nn.TransformerEncoder(layer, 2)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.head = nn.Linear(width, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.embed(x))
        return self.head(self.norm(hidden.transpose(1, 2)).transpose(1, 2))


class Text:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x).view(-1, 64), x.view(-1))


def plain() -> None:
    train(norm=False)


def batch_norm() -> None:
    train(norm=True)


def train(*, norm: bool) -> None:
    torch.set_num_threads(1)
    job = cr.join(seed=7)
    torch.manual_seed(0)
    model = DDP(Net(norm=norm), broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    batches = cr.Batches(Text(), global_batch=10, seed=3)
    job.protect(model=model, optimizer=optimizer, scheduler=scheduler, batches=batches)
    for step in job.steps(until=STEPS):
        with step:
            loss = loss_of(model, step.batch)
            loss.backward()
            step.report(loss=loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
