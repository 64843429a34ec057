"""The tensors of a module by names that do not depend on what it was wrapped in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from closeranks.train.tree import NotProtectable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

# Attributes under which wrappers keep what they wrap; of torch.compile, activation checkpointing.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")


class Part(NamedTuple):
    """A parameter, a persistent buffer, or the extra state of a module in the tree."""

    name: str  # such as "layers.0.weight"
    owner: nn.Module
    tensor: torch.Tensor | None  # None: extra state
    is_buffer: bool


def named_parts(module: nn.Module, prefix: str = "") -> Iterator[Part]:
    """Everything that is saved of a module; what is tied comes under each of its names.

    Raises:
        NotProtectable: it is wrapped in the first FSDP, whose flat parameters have no names.
    """
    wrapped = _wrapped(module, prefix)
    if wrapped is not None:
        yield from named_parts(wrapped, prefix)
        return
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield Part(prefix + name, module, parameter, is_buffer=False)
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield Part(prefix + name, module, buffer, is_buffer=True)
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        yield Part(f"{prefix}_extra_state", module, None, is_buffer=False)
    for name, child in module._modules.items():
        if child is not None:
            yield from named_parts(child, f"{prefix}{name}.")


def _wrapped(module: nn.Module, prefix: str) -> nn.Module | None:
    if hasattr(module, "_fsdp_wrapped_module"):
        way_out = "wrap it with torch.distributed.fsdp.fully_shard instead"
        raise NotProtectable(prefix or "module", module, expected="parameters with names", way_out=way_out)
    if isinstance(module, DistributedDataParallel | DataParallel):
        inner: nn.Module = module.module
        return inner
    for attribute in _WRAPPED:
        if attribute in module._modules:
            return module._modules[attribute]
    return None
