"""What the small training scripts of the tests have in common: data, a model, and things that happen once in a run."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr
from closeranks.events import ProcessReady, ProcessSeated
from closeranks.journal import read

RUN = Path(os.environ["CLOSERANKS_RUN_DIR"])
LOOK_S = 0.02


class Numbers:
    """The data: sample ``index`` is the same on every rank."""

    def __init__(self, samples: int, width: int) -> None:
        self._samples = samples
        self._width = width

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(self._width, generator=torch.Generator().manual_seed(index))


def two_layers(width: int) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """The model, the same on every rank, and its optimizer."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def once(name: str) -> bool:
    """True for the first process of the run that asks; what it decides does not come again after a recovery."""
    try:
        os.close(os.open(RUN / name, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def wait_until_known(job: cr.Job) -> None:
    """Sit until the supervisor has heard of every seat that it trains: what goes wrong before has all begin anew."""
    never = threading.Event()
    with job.section("wait"):
        while not all_are_known() and job.world.poison is None:
            never.wait(LOOK_S)


def all_are_known() -> bool:
    events = [record.event for record in read(RUN / "journal.jsonl").records]
    seats = {event.seat: event.proc for event in events if isinstance(event, ProcessSeated)}
    ready = {event.proc for event in events if isinstance(event, ProcessReady)}
    return ready.issuperset(seats.values())


def idle(name: str) -> None:
    """Sit between collectives until this file is in the run folder."""
    never = threading.Event()
    while not (RUN / name).exists():
        never.wait(LOOK_S)
