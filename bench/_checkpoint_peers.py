"""What others do with the same tensors: (blocked, total) seconds of a save, and seconds of a load."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

Tensors = dict[str, Tensor]
Save = Callable[[Path], tuple[float, float]]


def start_group() -> None:
    """A group of one: asynchronous saves of torch.distributed.checkpoint want one."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)


def saves(tensors: Tensors) -> dict[str, Save]:
    """Each writes into a place that does not exist yet."""
    stager = DefaultStager(StagingOptions(False, False, False, False))  # without a device: no pinning, no streams
    return {
        "dcp sync": lambda path: _sync(lambda: dcp.save(tensors, checkpoint_id=path)),
        "dcp async default": lambda path: _async(lambda: dcp.async_save(tensors, checkpoint_id=path)),
        "dcp async cached": lambda path: _async(
            lambda: dcp.async_save(tensors, checkpoint_id=path, async_stager=stager)
        ),
        "torch.save + fsync": lambda path: _sync(lambda: _then_fsync(lambda: torch.save(tensors, path), path)),
        "safetensors + fsync": lambda path: _sync(
            lambda: _then_fsync(lambda: safetensors.torch.save_file(tensors, path), path)
        ),
    }


def loads(tensors: Tensors, folder: Path) -> dict[str, Callable[[], float]]:
    """Each reads what it has written itself."""
    dcp.save(tensors, checkpoint_id=folder / "dcp")
    torch.save(tensors, folder / "torch")
    safetensors.torch.save_file(tensors, folder / "safetensors")
    into = {name: tensor.clone() for name, tensor in tensors.items()}
    return {
        "dcp load": lambda: _timed(lambda: dcp.load(into, checkpoint_id=folder / "dcp")),
        "torch.load": lambda: _timed(lambda: torch.load(folder / "torch", weights_only=True)),
        "safetensors load": lambda: _timed(lambda: _copied(safetensors.torch.load_file(folder / "safetensors"))),
    }


def remove(path: Path) -> None:
    """A file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copied(tensors: Tensors) -> Tensors:
    """Until it is copied, what was loaded is a map of the file, and nothing was read."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _timed(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def _sync(save: Callable[[], object]) -> tuple[float, float]:
    seconds = _timed(save)
    return seconds, seconds


def _async(save: Callable[[], object]) -> tuple[float, float]:
    began = time.perf_counter()
    future = save()
    blocked_s = time.perf_counter() - began
    future.result()  # type: ignore[attr-defined]
    return blocked_s, time.perf_counter() - began


def _then_fsync(save: Callable[[], object], path: Path) -> None:
    save()
    for one in (path, path.parent):
        fd = os.open(one, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
