"""What a save holds: every tensor of the state by name, once over all writers, and the small state beside it as JSON.

The names are paths: ``model/layers.0.weight``, ``optimizer/state/0/exp_avg``, ``seat/3/loader/buffer``. Wrappers of
DDP, ``torch.compile`` and activation checkpointing leave no trace in them, so that a checkpoint fits a model with
others, or with none.

Nothing is copied here: the tensors are the live ones until ``copy_into`` makes the one copy of a save.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from closeranks.checkpoint.arena import Arena, Meta
from closeranks.checkpoint.image import Layout, Leaf, lay_out
from closeranks.train import tree
from closeranks.train.boxes import Box, boxes_of, is_distributed, require_rebuildable, share_of
from closeranks.train.host_memory import cuda_devices, pin
from closeranks.train.modules import named_parts
from closeranks.train.protected import Stateful

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Captured(NamedTuple):
    """One writer's part of a save."""

    leaves: list[Leaf]
    tensors: list[torch.Tensor]  # the live elements of each leaf
    shared: Any  # JSON, equal on all writers
    local: Any  # JSON, this writer's own


def capture(state: Mapping[str, Any], local: Mapping[str, Any], writer: int, world: int) -> Captured:
    """Name everything that ``writer`` of ``world`` contributes to a save; nothing is copied yet.

    Args:
        state: modules, optimizers, anything with ``state_dict``, or nested dicts and lists of tensors, numpy arrays
            and JSON. Equal on all writers, but for DTensors, of which each has its part, and for the buffers of
            modules: writer 0's are the model's, the others save theirs for their own successors.
        local: the same kinds of values, of this writer alone.
        writer: this one's number.
        world: how many take part; the bytes that all of them hold are shared out among them.

    Raises:
        NotProtectable: names the first leaf that cannot be kept.
    """
    found = _Found(state)
    for name, value in state.items():
        found.values[name] = found.structure_of(name, value)
    own = _Found({})
    for name, value in local.items():
        own.values[name] = own.structure_of(f"seat/{writer}/{name}", value)
    boxes = [box for name, tensor in found.tensors.items() for box in boxes_of(name, tensor)]
    mine = share_of([b for b in boxes if b.replicated and b.leaf.name not in found.buffers], writer, world)
    mine += [b for b in boxes if not b.replicated and b.first]
    buffers = [b for b in boxes if b.replicated and b.leaf.name in found.buffers]
    seat_buffers = _of_seat(buffers, writer) if writer else {}
    mine += list(seat_buffers.values()) if writer else buffers
    mine += [box for name, tensor in own.tensors.items() for box in boxes_of(name, tensor)]
    return Captured(
        leaves=[box.leaf for box in mine],
        tensors=[box.memory for box in mine],
        shared={"values": found.values, "parameters": found.parameters},
        local={"values": own.values, "buffers": {name: box.leaf.name for name, box in seat_buffers.items()}},
    )


def copy_into(captured: Captured, arena: Arena, step: int) -> None:
    """Make the save's one copy: everything that was captured goes into the arena, as of now.

    Raises:
        StoreProblem: there is not enough memory; the arena holds no image then.
    """
    known = _known.get(arena)
    layout = known.layout if known is not None and known.leaves == captured.leaves else lay_out(captured.leaves)
    memory = torch.frombuffer(arena.open_image(step, layout), dtype=torch.uint8)
    if known is None or known.layout is not layout or known.memory.data_ptr() != memory.data_ptr():
        known = _known[arena] = _Prepared(captured.leaves, layout, memory, _targets(memory, layout, captured.tensors))
    devices = cuda_devices(captured.tensors)
    at_once = bool(devices) and pin(arena, memory)
    with torch.no_grad():
        torch._foreach_copy_(known.targets, captured.tensors, non_blocking=at_once)
    for device in devices:
        torch.cuda.synchronize(device)
    arena.finish(step, Meta(slices=layout.slices, shared=captured.shared, local=captured.local))


class _Prepared(NamedTuple):
    """Where everything of an arena's last image went; the next one is mostly the same."""

    leaves: list[Leaf]
    layout: Layout
    memory: torch.Tensor
    targets: list[torch.Tensor]


_known: weakref.WeakKeyDictionary[Arena, _Prepared] = weakref.WeakKeyDictionary()


def _targets(memory: torch.Tensor, layout: Layout, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [
        memory[part.at : part.at + part.length].view(tensor.dtype).view(tensor.shape)
        for part, tensor in zip(layout.slices, like, strict=True)
    ]


def _of_seat(buffers: Iterable[Box], writer: int) -> dict[str, Box]:
    return {
        box.leaf.name: box._replace(leaf=box.leaf._replace(name=f"seat/{writer}/{box.leaf.name}")) for box in buffers
    }


class _Found:
    """Collects named tensors and structures; a tensor that was met before keeps its first name."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.values: dict[str, Any] = {}
        self.buffers: set[str] = set()
        self.parameters = {
            name: names
            for name, value in state.items()
            if isinstance(value, torch.optim.Optimizer) and (names := parameter_names(value, state)) is not None
        }
        self._names: dict[Any, str] = {}

    def structure_of(self, name: str, value: Any) -> Any:
        """The structure of one value; its tensors are added."""
        if isinstance(value, nn.Module):
            return self._structure_of_module(name, value)
        content = value.state_dict() if isinstance(value, Stateful) else value
        met: dict[str, torch.Tensor] = {}
        structure = tree.flatten(name, content, met)
        for key, tensor in met.items():
            require_rebuildable(key, tensor)
        return tree.renamed(structure, {key: self._name(key, tensor) for key, tensor in met.items()})

    def _structure_of_module(self, name: str, module: nn.Module) -> Any:
        items: list[Any] = []
        for part in named_parts(module):
            path = f"{name}/{part.name}"
            if part.tensor is None:
                items.append([part.name, self.structure_of(path, part.owner.get_extra_state())])
                continue
            first = self._name(path, part.tensor)
            if part.is_buffer and first == path:
                self.buffers |= {box.leaf.name for box in boxes_of(path, part.tensor)}
            items.append([part.name, {"t": first}])
        return {"d": items}

    def _name(self, name: str, tensor: torch.Tensor) -> str:
        first = self._names.setdefault(identity(tensor), name)
        if first == name:
            self.tensors[name] = tensor
        return first


def identity(tensor: torch.Tensor) -> Any:
    """Equal for two tensors that are the same elements of the same memory: for tied ones."""
    # A DTensor's part may be empty here and not elsewhere: memory would be another answer on other writers.
    if is_distributed(tensor) or tensor.numel() == 0 or tensor.layout is not torch.strided:
        return id(tensor)
    try:
        place = tensor.data_ptr()
    except RuntimeError:
        place = 0
    if not place:  # a wrapper without memory of its own
        return id(tensor)
    return (place, tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())


def parameter_names(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> list[list[str]] | None:
    """The names of an optimizer's parameters, group by group; None: some are in no module of the state."""
    names: dict[int, str] = {}
    for name, value in state.items():
        if isinstance(value, nn.Module):
            for part in named_parts(value):
                if part.tensor is not None:
                    names.setdefault(id(part.tensor), f"{name}/{part.name}")
    groups = [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]
    return groups if all(all(group) for group in groups) else None
