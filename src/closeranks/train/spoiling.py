"""What strikes values: bits of a tensor, a batch, a collective. Imported when such a fault strikes: it needs torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from closeranks.drill.fault import Fault, Kind, Lasting
from closeranks.train.protected import Protected
from closeranks.train.untyped import c10d

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def strike(fault: Fault, protected: Protected, value: Any) -> Any:
    """Spoil one element: of ``value`` (an activation or a gradient that passes by), else of state or gradients.

    Returns:
        What takes the place of ``value``; None where something else was spoiled.

    Raises:
        LookupError: there is nothing of that sort at this moment, such as a gradient before the first backward.
    """
    draw = random.Random(f"value/{fault.draw}")  # noqa: S311 - no secret
    if isinstance(value, torch.Tensor) and fault.kind not in (Kind.FLIP_WEIGHT, Kind.FLIP_OPTIMIZER):
        copy = value.clone()
        _spoil(fault, draw, copy.detach())
        return copy
    found = [tensor for tensor in _struck(fault.kind, protected) if tensor.is_floating_point() and tensor.numel()]
    if not found:
        raise LookupError(f"{fault}: there is no tensor of that kind at this moment")
    _spoil(fault, draw, draw.choice(found))
    return None


def batch_of(fault: Fault, fetch: Callable[[int, int, int], Any], step: int, seat: int, seats: int) -> Any:
    """What the seat trains on in place of its own batch."""
    if fault.kind is Kind.DUPLICATE_BATCH:
        return fetch(step, (seat + 1) % seats, seats)
    return fetch(max(0, step - 1), seat, seats)


def shortened(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[Any], Any]]:
    """Half of the elements, and an all-reduce of them."""
    halves = [tensor.reshape(-1)[: max(1, tensor.numel() // 2)].clone() for tensor in tensors]
    return halves, lambda backend: backend.allreduce(halves, c10d.AllreduceOptions())


def _struck(kind: Kind, protected: Protected) -> Iterator[torch.Tensor]:
    """The tensors themselves, without autograd's watch over changes in place: hardware does not tell it either."""
    match kind:
        case Kind.FLIP_WEIGHT:
            yield from (p.data for module in protected.modules.values() for p in module.parameters())
        case Kind.FLIP_OPTIMIZER:
            for optimizer in protected.optimizers.values():
                for state in optimizer.state.values():
                    yield from (value for value in state.values() if isinstance(value, torch.Tensor) and value.dim())
        case _:
            parameters = (p for module in protected.modules.values() for p in module.parameters())
            yield from (p.grad.data for p in parameters if p.grad is not None)


def _spoil(fault: Fault, draw: random.Random, tensor: torch.Tensor) -> None:
    place = draw.randrange(tensor.numel())
    flat = tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))
    if fault.kind is Kind.NAN:
        flat[place] = torch.nan
        return
    width = 8 * tensor.element_size()
    mask = sum(1 << bit for bit in draw.sample(range(width), fault.bits))
    mask -= (1 << width) if mask >> (width - 1) else 0  # as a signed number
    bits = flat.view(_INTEGERS[tensor.element_size()])
    if fault.lasting is Lasting.STUCK:
        bits[place] |= mask  # stuck at one
    else:
        bits[place] ^= mask
