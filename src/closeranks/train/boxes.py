"""Which part of a tensor lies in this process: boxes by global shape and offsets, and the memory that holds them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from closeranks.checkpoint.image import Leaf
from closeranks.train.tree import NotProtectable

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPES: Final[dict[str, torch.dtype]] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""Types of elements, by the name that safetensors gives them."""
_USUAL = (torch.Tensor, torch.nn.Parameter)  # neither wrappers nor DTensors: most questions need not be asked
_NAMES = {dtype: name for name, dtype in TYPES.items()}

_Run = tuple[int, int]  # begin, length, along one dimension of the whole tensor


class Box(NamedTuple):
    """A part of a tensor that this process holds."""

    leaf: Leaf
    memory: torch.Tensor  # the live elements: a view, of the leaf's shape
    replicated: bool  # every process of the job holds it
    first: bool  # this process is the one of its replicas that saves it


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor."""
    return type(tensor) not in _USUAL and hasattr(tensor, "device_mesh") and hasattr(tensor, "_local_tensor")


def _wraps_others(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) not in _USUAL
        and bool(is_traceable_wrapper_subclass(tensor))
        and not tensor.is_nested
        and not is_distributed(tensor)
    )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without gradient and without the behaviour of a subclass."""
    if type(tensor) in _USUAL:
        return tensor.detach()
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor)


def boxes_of(name: str, tensor: torch.Tensor) -> list[Box]:
    """The boxes of the tensor that lie here: one where it is whole, none or several where it is a DTensor.

    A wrapper of other tensors (a quantized one, say) is taken apart: its parts are named ``name/part``.

    Raises:
        NotProtectable: its elements cannot be reached as they are, or their type has no name in the format.
    """
    if type(tensor) not in _USUAL:
        if is_distributed(tensor):
            return _boxes_of_distributed(name, tensor)
        if _wraps_others(tensor):
            wrapper: Any = tensor
            parts, _ = wrapper.__tensor_flatten__()
            return [box for part in parts for box in boxes_of(f"{name}/{part}", getattr(wrapper, part))]
    memory = _reachable(name, tensor)
    shape = tuple(memory.shape)
    return [Box(Leaf(name, _NAMES[memory.dtype], shape, (0,) * len(shape), shape), memory, replicated=True, first=True)]


def require_rebuildable(name: str, tensor: torch.Tensor) -> None:
    """See that a tensor outside of a module can be made anew from its elements.

    Raises:
        NotProtectable: it wraps other tensors, which only a module's own parameter can take over in place.
    """
    if _wraps_others(tensor):
        way_out = "store the tensors that it wraps, each by a name"
        raise NotProtectable(name, tensor, expected="a dense tensor, not a wrapper of others", way_out=way_out)


def _reachable(name: str, tensor: torch.Tensor) -> torch.Tensor:
    expected, way_out = "", "keep it outside of the protected state, or store it as a dense tensor"
    if tensor.is_meta:
        expected, way_out = "a tensor with memory, this one is on the meta device", "call to_empty(device=...) first"
    elif tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        expected = f"a dense tensor, this one is {tensor.layout}"
    elif tensor.dtype not in _NAMES:
        expected = f"elements of one of {', '.join(map(str, _NAMES))}, these are {tensor.dtype}"
    if expected:
        raise NotProtectable(name, tensor, expected=expected, way_out=way_out)
    memory = plain(tensor)
    if memory.numel() and memory.device.type == "cpu" and not memory.data_ptr():
        raise NotProtectable(name, tensor, expected="a tensor with memory of its own", way_out=way_out)
    return memory


# --- DTensors ---------------------------------------------------------------------------------------------------


def _boxes_of_distributed(name: str, tensor: Any) -> list[Box]:
    mesh, shape = tensor.device_mesh, tuple(tensor.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return []
    sharding, first = _sharding(name, tensor, coordinate)
    runs = [placed_runs(size, [s for s in sharding if s.dim == dim]) for dim, size in enumerate(shape)]
    local = _reachable(name, tensor._local_tensor)
    expected = tuple(sum(length for _, length in along) for along in runs)
    if tuple(local.shape) != expected:
        raise NotProtectable(
            name,
            tensor,
            expected=f"a local part of shape {expected} under {tensor.placements}, it has {tuple(local.shape)}",
            way_out="redistribute it to Shard or Replicate first",
        )
    boxes = []
    for combination in itertools.product(*(_with_places(along) for along in runs)):
        memory = local
        for dim, (place, (_, length)) in enumerate(combination):
            memory = memory.narrow(dim, place, length)
        offsets = tuple(begin for _, (begin, _) in combination)
        leaf = Leaf(name, _NAMES[local.dtype], shape, offsets, tuple(length for _, (_, length) in combination))
        boxes.append(Box(leaf, memory, replicated=False, first=first))
    return boxes


class Sharding(NamedTuple):
    """How one dimension of a tensor is cut over one dimension of a mesh."""

    dim: int  # of the tensor
    parts: int
    part: int  # ours
    strides: int = 1  # above 1: each of so many chunks is cut by itself, and we have a part of each


def _sharding(name: str, tensor: Any, coordinate: Sequence[int]) -> tuple[list[Sharding], bool]:
    sharding, first = [], True
    for placement, count, index in zip(tensor.placements, tensor.device_mesh.shape, coordinate, strict=True):
        if placement.is_replicate():
            first = first and index == 0
        elif isinstance(dim := getattr(placement, "dim", None), int):
            strides = int(getattr(placement, "split_factor", 1))
            sharding.append(Sharding(dim % len(tensor.shape), count, index, strides))
        else:
            way_out = "redistribute it to Shard or Replicate first"
            raise NotProtectable(name, tensor, expected=f"Shard or Replicate, not {placement}", way_out=way_out)
    return sharding, first


def placed_runs(size: int, sharding: Sequence[Sharding]) -> list[_Run]:
    """Which indices of a dimension of ``size`` are ours when it is cut by each sharding in turn; at least one run.

    Source: torch.distributed.tensor, ``Shard`` (torch.chunk) and ``_StridedShard._split_tensor``.
    """
    runs = [(0, size)]
    for one in sharding:
        chunks = [_chunk(runs, one.strides, number) for number in range(one.strides)]
        runs = _joined([run for chunk in chunks for run in _chunk(chunk, one.parts, one.part)])
    return runs or [(0, 0)]


def _chunk(runs: Sequence[_Run], count: int, index: int) -> list[_Run]:
    total = sum(length for _, length in runs)
    size = -(-total // count)
    begin, end = min(size * index, total), min(size * (index + 1), total)
    found, at = [], 0
    for run_begin, length in runs:
        low, high = max(begin, at), min(end, at + length)
        if low < high:
            found.append((run_begin + low - at, high - low))
        at += length
    return found


def _joined(runs: Sequence[_Run]) -> list[_Run]:
    joined: list[_Run] = []
    for begin, length in runs:
        if joined and sum(joined[-1]) == begin:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((begin, length))
    return joined


def _with_places(runs: Sequence[_Run]) -> list[tuple[int, _Run]]:
    """Each run with its place in the local part."""
    places = itertools.accumulate((length for _, length in runs[:-1]), initial=0)
    return list(zip(places, runs, strict=True))


# --- sharing out ------------------------------------------------------------------------------------------------

_SPLIT_BYTES = 2**20  # smaller tensors stay whole


def bytes_of(leaf: Leaf) -> int:
    """Bytes of the leaf's box."""
    return math.prod(leaf.shape) * TYPES[leaf.dtype].itemsize


def share_of(boxes: Sequence[Box], writer: int, world: int) -> list[Box]:
    """What ``writer`` of ``world`` saves of boxes that all of them hold: an equal part of their bytes, in whole rows.

    All writers get the same answer for the same boxes: every row has exactly one writer.
    """
    if world == 1:
        return list(boxes)
    total = sum(bytes_of(box.leaf) for box in boxes)
    share, at = [], 0
    for box in boxes:
        length = bytes_of(box.leaf)
        if length < _SPLIT_BYTES:
            if (at + length // 2) * world // max(total, 1) == writer:
                share.append(box)
        else:
            row_bytes = length // box.leaf.shape[0]
            low, high = (
                min(max(-(-((number * total) - at * world) // (row_bytes * world)), 0), box.leaf.shape[0])
                for number in (writer, writer + 1)
            )
            if low < high:
                share.append(_rows(box, low, high))
        at += length
    return share


def _rows(box: Box, low: int, high: int) -> Box:
    leaf = box.leaf
    part = leaf._replace(offsets=(leaf.offsets[0] + low, *leaf.offsets[1:]), shape=(high - low, *leaf.shape[1:]))
    return box._replace(leaf=part, memory=box.memory[low:high])
