"""The state in a checkpoint of torch.distributed.checkpoint, read without running anything that it contains."""

from __future__ import annotations

import io
import math
import pickle
from typing import TYPE_CHECKING, Any, Final

import torch

from closeranks.checkpoint.problems import Damaged, StoreRefused
from closeranks.train.dcp_metadata import Chunk, DcpItem, DcpTensor, read_metadata

if TYPE_CHECKING:
    from pathlib import Path

_METADATA_FILE: Final = ".metadata"


def read_dcp(folder: Path) -> dict[str, Any]:
    """The nested state that was saved.

    Raises:
        StoreRefused: it holds what only running code could load, or what is outside of its folder; names it.
        Damaged: it is incomplete, or contradicts itself.
    """
    state: dict[Any, Any] = {}
    for item in read_metadata(folder / _METADATA_FILE):
        node = state
        for key in item.path[:-1]:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise Damaged(f"{folder}: {item.path} lies inside of a leaf")
        node[item.path[-1]] = _value(folder, item)
    lists = _with_lists(state)
    if not isinstance(lists, dict):
        raise Damaged(f"{folder}: expected names at the top of the state, got numbers")
    return lists


def _with_lists(node: Any) -> Any:
    """Whole numbers as keys are places in lists."""
    if not isinstance(node, dict):
        return node
    content = {key: _with_lists(value) for key, value in node.items()}
    if content and all(isinstance(key, int) for key in content):
        if sorted(content) != list(range(len(content))):
            raise Damaged(f"a list has entries {sorted(content)[:8]}, expected 0 to {len(content) - 1}")
        return [content[place] for place in range(len(content))]
    return content


def _value(folder: Path, item: DcpItem) -> Any:
    name = "/".join(map(str, item.path))
    if item.tensor is None:
        assert item.place is not None
        return _loaded(folder, item.place, name)
    return _tensor(folder, item.tensor, name)


def _tensor(folder: Path, tensor: DcpTensor, name: str) -> torch.Tensor:
    elements = math.prod(tensor.shape)
    saved = sum(math.prod(chunk.shape) for chunk in tensor.chunks)
    stored = sum(chunk.length for chunk in tensor.chunks)
    if saved != elements or elements * tensor.dtype.itemsize > stored:
        got = f"{saved} elements in {stored} bytes"
        raise Damaged(f"{folder}: {name}: expected {elements} elements of {tensor.dtype}, got {got}")
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    for chunk in tensor.chunks:
        part = _loaded(folder, chunk, name)
        if not isinstance(part, torch.Tensor) or tuple(part.shape) != chunk.shape or part.dtype != tensor.dtype:
            raise Damaged(f"{folder}/{chunk.file}: {name}: expected {tensor.dtype} {list(chunk.shape)}")
        box = whole
        for dim, (begin, size) in enumerate(zip(chunk.offsets, chunk.shape, strict=True)):
            box = box.narrow(dim, begin, size)
        box.copy_(part)
    return whole


def _loaded(folder: Path, place: Chunk, name: str) -> Any:
    file = (folder / place.file).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise StoreRefused(f"{folder}: {name}: {place.file!r} is outside of the checkpoint's folder")
    try:
        size = file.stat().st_size
        if place.at + place.length > size:
            raise Damaged(f"{file}: {name}: expected {place.at + place.length} bytes, got {size}")
        with file.open("rb") as stream:
            stream.seek(place.at)
            return torch.load(io.BytesIO(stream.read(place.length)), map_location="cpu", weights_only=True)
    except OSError as error:
        raise Damaged(f"{file}: {name}: {error.strerror}") from error
    except pickle.UnpicklingError as error:
        way_out = "leave it out when you save the checkpoint, or save it as tensors and numbers"
        raise StoreRefused(
            f"{file}: {name} can only be loaded by running code, which is not done; {way_out}"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise Damaged(f"{file}: {name}: {error}") from error
