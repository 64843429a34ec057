"""What ``protect`` was given: which of it is replicated, which belongs to the seat, and how to put it back.

Replicated state (parameters, optimizer state, scheduler, scaler, anything with ``state_dict``) is equal on all
seats; it is digested, compared, and transferred from a donor. Seat-local state (buffers, and what was given as
``local``) differs by seat; it goes to the seat's page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from closeranks.train import digest as digests
from closeranks.train import tree
from closeranks.train.batches import Batches
from closeranks.train.tree import NotProtectable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@runtime_checkable
class Stateful(Protocol):
    """Anything that can be protected."""

    def state_dict(self) -> dict[str, Any]:
        """The state as nested data."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take such a state over."""
        ...


class Protected:
    """The registry of one job."""

    def __init__(self) -> None:
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.others: dict[str, Stateful] = {}
        self.local: dict[str, Stateful] = {}
        self._owners: list[tuple[str, torch.nn.Module]] | None = None
        self._ddp: list[DistributedDataParallel] | None = None
        self._changing: dict[str, Stateful] | None = None

    def add(self, name: str, value: Any, *, local: bool = False) -> None:
        """Register one object.

        Raises:
            NotProtectable: it has no state_dict, or a leaf of it cannot be kept; it is not registered.
            ValueError: the name is taken by another object.
        """
        self.look_for_parts()
        known = {**self.modules, **self.optimizers, **self.others, **self.local}
        if name in known:
            if known[name] is value:
                return
            raise ValueError(f"protect({name}=...): the name is taken by another object; choose a different one")
        if not isinstance(value, Stateful):
            raise NotProtectable(
                f"protect({name}=...)",
                value,
                expected="an object with state_dict() and load_state_dict()",
                way_out="protect the object that holds it, or give it these two methods",
            )
        if isinstance(value, torch.nn.Module) and not local:
            tree.flatten(name, dict(value.named_parameters()), {})
            self.modules[name] = value
        elif isinstance(value, torch.optim.Optimizer) and not local:
            tree.flatten(name, value.state_dict(), {})
            self.optimizers[name] = value
        else:
            tree.flatten(name, value.state_dict(), {})
            (self.local if local else self.others)[name] = value

    def everything(self) -> dict[str, Any]:
        """All that is the job's, and not one seat's, by the names that it was given."""
        return {**self.modules, **self.optimizers, **self.others}

    # --- replicated --------------------------------------------------------------------------------------------

    @property
    def sharded(self) -> bool:
        """Whether a parameter is a DTensor: then a lost seat has no donor."""
        return any(hasattr(p, "device_mesh") for m in self.modules.values() for p in m.parameters())

    def capture(self) -> tuple[list[tuple[str, torch.Tensor]], Any]:
        """Replicated state: named tensors (the live ones) and the structure of everything else (JSON)."""
        named: list[tuple[str, torch.Tensor]] = []
        structure: dict[str, Any] = {}
        for name, module in self.modules.items():
            named += [(f"{name}/{key}", whole(p.detach())) for key, p in module.named_parameters()]
        for name, optimizer in self.optimizers.items():
            tensors: dict[str, torch.Tensor] = {}
            structure[name] = tree.flatten(name, optimizer.state_dict(), tensors)
            named += [(key, whole(t)) for key, t in tensors.items()]
        for name, other in self.others.items():
            tensors = {}
            structure[name] = tree.flatten(name, other.state_dict(), tensors)
            named += tensors.items()
        return named, structure

    def replicated_tensors(self) -> Iterator[torch.Tensor]:
        """Parameters and optimizer state, in an order that is the same on all seats; the live ones."""
        for module in self.modules.values():
            yield from (whole(p.detach()) for p in module.parameters())
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    entry = optimizer.state.get(parameter, {})
                    yield from (whole(one) for one in entry.values() if isinstance(one, torch.Tensor))

    def digest(self) -> str:
        """Digest of the replicated state."""
        named, structure = self.capture()
        return digests.digest(named, structure)

    def restore(self, named: dict[str, torch.Tensor], structure: dict[str, Any]) -> None:
        """Put captured replicated state back: parameters in place, the rest through its owner."""
        with torch.no_grad():
            for name, module in self.modules.items():
                for key, parameter in module.named_parameters():
                    source = named[f"{name}/{key}"]
                    target = whole(parameter.detach())
                    if source.data_ptr() != target.data_ptr() or source.numel() == 0:
                        target.copy_(source)
            for name, optimizer in self.optimizers.items():
                restore_optimizer(optimizer, tree.unflatten(structure[name], named))
        for name, other in self.others.items():
            other.load_state_dict(tree.unflatten(structure[name], named))

    def clear_gradients(self) -> None:
        """Forget the gradients of a void attempt."""
        for module in self.modules.values():
            for parameter in module.parameters():
                parameter.grad = None
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    # --- seat-local and undo -----------------------------------------------------------------------------------

    def buffers(self) -> list[tuple[str, torch.nn.Module, list[torch.Tensor]]]:
        """Buffers by the module that owns them; what a forward pass may change."""
        if self._owners is None:
            self._owners = [
                (f"{name}/{path}", owner)
                for name, module in self.modules.items()
                for path, owner in module.named_modules()
                if owner._buffers
            ]
        return [(name, owner, [b for b in owner._buffers.values() if b is not None]) for name, owner in self._owners]

    def ddp_parts(self) -> list[DistributedDataParallel]:
        """The DDP wrappers among what is protected: modules themselves, or direct parts of them."""
        if self._ddp is None:
            candidates = (part for module in self.modules.values() for part in (module, *module.children()))
            self._ddp = [part for part in candidates if isinstance(part, DistributedDataParallel)]
        return self._ddp

    def look_for_parts(self) -> None:
        """Walk the modules again: the walk is too long for every step, and set-up may have changed them."""
        self._owners = self._ddp = self._changing = None

    def changing(self) -> Mapping[str, Stateful]:
        """Objects whose state a step may change: not modules, not optimizers, and not data that the step determines."""
        if self._changing is None:
            every = {**self.others, **self.local}
            self._changing = {name: one for name, one in every.items() if not isinstance(one, Batches)}
        return self._changing

    def local_structure(self, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Structure of the objects given as local; their tensors are put into ``tensors``."""
        return {name: tree.flatten(name, value.state_dict(), tensors) for name, value in self.local.items()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The local part of a DTensor, anything else as it is."""
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else tensor


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Like load_state_dict, but bit for bit: that one casts moments to the type of their parameter."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for key in [k for k in group if k != "params" and k not in saved]:
            del group[key]
        group.update({key: _adopt(group.get(key), value) for key, value in saved.items() if key != "params"})
    wanted = {parameters[int(index)]: entry for index, entry in state["state"].items()}
    for parameter in [p for p in optimizer.state if p not in wanted]:
        del optimizer.state[parameter]
    for parameter, entry in wanted.items():
        mine = optimizer.state[parameter]
        for key in [k for k in mine if k not in entry]:
            del mine[key]
        for key, value in entry.items():
            mine[key] = _adopt(mine.get(key), value)


def _adopt(mine: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(mine, torch.Tensor) and mine.shape == value.shape and mine.dtype == value.dtype:
        whole(mine).copy_(whole(value))
        return mine
    return value.clone()


def always_changed(module: torch.nn.Module) -> bool:
    """Normalisation layers update their statistics in kernels that do not count tensor versions."""
    return isinstance(module, _NormBase)
