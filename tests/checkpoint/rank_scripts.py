"""What the ranks of small jobs do. Each function runs on every rank, inside of a process group."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from closeranks.checkpoint import Checkpointer, Settings
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.train.digest import digest
from closeranks.train.modules import named_parts


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 10)  # neither divides by 4 or 3
        self.down = nn.Linear(10, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(6, 5, bias=False)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.scale


def build(layout: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same network, held in the way that ``layout`` says."""
    torch.manual_seed(seed)
    model: Any = Net()
    for parameter in model.layers[1].norm.parameters():
        parameter.requires_grad_(requires_grad=False)
    world = dist.get_world_size()
    if layout == "fsdp":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    elif layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh)
    elif layout == "fsdp+tp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        for layer in model.layers:
            parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    elif layout == "ddp":
        model = DistributedDataParallel(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    frozen = [p for p in model.parameters() if not p.requires_grad]
    groups = [{"params": trained, "lr": 0.01, "role": "trained"}, {"params": frozen, "lr": 0.5, "role": "frozen"}]
    return model, torch.optim.AdamW(groups, foreach=False)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(5)  # the same samples everywhere: ranks of one tensor-parallel group must see the same
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of the whole state, however it is cut: equal for equal bits."""
    parts = [(p.name, p.tensor) for p in named_parts(model) if p.tensor is not None]
    names = {id(tensor): name for name, tensor in parts}
    tensors = [(name, _full(tensor.detach())) for name, tensor in parts]
    for parameter, entry in optimizer.state.items():
        tensors += [(f"{names[id(parameter)]}/{key}", _full(value)) for key, value in entry.items()]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return digest(sorted(tensors, key=lambda pair: pair[0]), groups)


def load_train_save(store: str, layout: str, seed: int) -> tuple[str, str, int]:
    """Fingerprints after loading (empty: there was nothing) and before saving, and the step that was loaded."""
    model, optimizer = build(layout, seed)
    state = {"model": model, "optimizer": optimizer}
    step, loaded = -1, ""
    with Checkpointer(store) as checkpointer:
        if seed:
            step = checkpointer.load(state).step
            loaded = fingerprint(model, optimizer)
        train(model, optimizer)
        before = fingerprint(model, optimizer)
        checkpointer.save(state, step=step + 1)
    return loaded, before, step


def save_parts_of_a_pipeline(store: str) -> list[str]:
    """Every rank has other layers under one name."""
    model = nn.ModuleDict({str(dist.get_rank()): nn.Linear(2, 2)})
    with Checkpointer(store, settings=Settings(deadline_s=60.0)) as checkpointer:
        heard = [refusal(lambda: checkpointer.save({"model": model}, step=0))]
        heard.append(refusal(lambda: checkpointer.save({}, local={"model": model}, step=0)))
        before = model[str(dist.get_rank())].weight.detach().clone()
        nn.init.zeros_(model[str(dist.get_rank())].weight)
        heard.append(refusal(lambda: checkpointer.load({}, local={"model": model})))
        assert torch.equal(before, model[str(dist.get_rank())].weight)
    return heard


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(np.random.rand())


def save_seats(store: str) -> tuple[float, float, float]:
    """Each rank has a position and random state of its own. Returns what it would have drawn next."""
    torch.manual_seed(100 + dist.get_rank())
    local = {"loader": {"at": 10 * dist.get_rank()}}
    with Checkpointer(store) as checkpointer:
        checkpointer.save({"w": torch.ones(3)}, step=4, local=local, data_position={"sample": 1234})
    return draws()


def load_seats(store: str) -> tuple[Any, tuple[float, float, float], tuple[str, ...], Any]:
    local: dict[str, Any] = {"loader": {"at": -1}}
    with Checkpointer(store) as checkpointer:
        loaded = checkpointer.load({"w": torch.zeros(3)}, local=local)
    return local["loader"]["at"], draws(), loaded.notes, loaded.data_position


def refusal(call: Any) -> str:
    """What kind of problem a call ends with, and its text; with a bound on the time."""
    began_s = time.monotonic()
    try:
        call()
    except (CheckpointProblem, TypeError) as error:
        assert time.monotonic() - began_s < 30
        return f"{type(error).__name__}: {error}"
    return ""


def lose_a_keeper(store: str, at_close: bool) -> list[str]:
    """Rank 1's keeper is killed between two saves; what each rank hears, call by call."""
    state = {"w": torch.full((1000,), 1.0)}
    checkpointer = Checkpointer(store, settings=Settings(deadline_s=20.0))
    heard = [refusal(lambda: checkpointer.save(state, step=0))]
    if dist.get_rank() == 1 and checkpointer.keeper_pid is not None:
        os.kill(checkpointer.keeper_pid, signal.SIGSTOP)  # so that the save cannot end before the kill
    saving = checkpointer.save(state, step=1, wait=False)
    if dist.get_rank() == 1 and checkpointer.keeper_pid is not None:
        os.kill(checkpointer.keeper_pid, signal.SIGKILL)
        while not saving.done():  # the kernel has told us
            time.sleep(0.01)
    dist.barrier()
    if not at_close:
        heard.append(refusal(lambda: checkpointer.save(state, step=2)))
        heard.append(refusal(lambda: checkpointer.save(state, step=2)))
    heard.append(refusal(checkpointer.close))
    return heard


def refuse_on_one_rank(store: str) -> list[str]:
    """Rank 1's state cannot be kept; then it can. Then its loader does not take what it is given."""
    checkpointer = Checkpointer(store, settings=Settings(deadline_s=20.0))
    odd = {"x": object()} if dist.get_rank() == 1 else {"x": 1}
    heard = [refusal(lambda: checkpointer.save({"w": torch.ones(2), "odd": odd}, step=0))]
    heard.append(refusal(lambda: checkpointer.save({"w": torch.ones(2)}, step=0, local={"l": Stubborn()})))
    live = torch.zeros(2)
    mine = Stubborn(refuses=dist.get_rank() == 1)
    heard.append(refusal(lambda: checkpointer.load({"w": live}, local={"l": mine})))
    heard.append(f"{live.tolist()} {mine.taken}")
    checkpointer.close()
    return heard


class Stubborn:
    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses, self.taken = refuses, 0

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.refuses:
            raise ValueError("not me")
        self.taken = state["taken"] + 1 if not self.taken else state["taken"]
