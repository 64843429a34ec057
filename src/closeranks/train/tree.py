"""Nested state as plain data: a JSON structure, and beside it the tensors by their path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SCALARS = (str, int, float, bool, type(None))
_INT_BITS = 63  # beyond these JSON readers disagree; numpy's generators hold integers of 128 bits
MAX_DEPTH = 64


class NotProtectable(TypeError):
    """State with a leaf that is neither a tensor, a numpy array nor JSON; nothing was protected."""

    def __init__(
        self,
        path: str,
        found: object,
        expected: str = "a tensor, a numpy array or a JSON value",
        way_out: str = "leave it out of state_dict() or store it as one of these",
    ) -> None:
        super().__init__(
            f"{path}: expected {expected}, got {type(found).__module__}.{type(found).__qualname__}; {way_out}"
        )
        self.path = path


def flatten(path: str, value: Any, tensors: dict[str, torch.Tensor], depth: int = 0) -> Any:
    """The structure of ``value`` as JSON; its tensors are put into ``tensors`` by path, arrays share their memory.

    Raises:
        NotProtectable: names the leaf; ``tensors`` may hold leaves that were met before it.
    """
    if depth > MAX_DEPTH:
        raise NotProtectable(path, value, expected=f"at most {MAX_DEPTH} levels", way_out="does it contain itself?")
    if isinstance(value, torch.Tensor):
        return {"t": _put(path, _with_memory(path, value), tensors)}
    if isinstance(value, np.ndarray):
        return {"n": _put(path, _shared_memory(path, value), tensors), "shape": list(value.shape)}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        items = []
        for key, item in value.items():
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise NotProtectable(f"{path}/{key!r} (key)", key, expected="text or an integer")
            items.append([key, flatten(f"{path}/{key}", item, tensors, depth + 1)])
        return {"d": items}
    if isinstance(value, (list, tuple)):
        parts = [flatten(f"{path}/{i}", item, tensors, depth + 1) for i, item in enumerate(value)]
        return {"l": parts} if isinstance(value, list) else {"u": parts}
    if isinstance(value, _SCALARS):
        return _scalar(path, value)
    raise NotProtectable(path, value)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Dense tensors in nested lists, tuples and dictionaries, whatever else is there."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_meta:
            yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


def _put(path: str, tensor: torch.Tensor, tensors: dict[str, torch.Tensor]) -> str:
    name, count = path, 1
    while name in tensors:  # {"a/b": ..., "a": {"b": ...}} and {1: ..., "1": ...} have equal paths
        count += 1
        name = f"{path}~{count}"
    tensors[name] = tensor
    return name


def _with_memory(path: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_meta:
        way_out = "give it memory first, for example with module.to_empty(device=...)"
        raise NotProtectable(
            path, tensor, expected="a tensor with memory (this one is on the meta device)", way_out=way_out
        )
    return tensor


def _shared_memory(path: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    contiguous = np.ascontiguousarray(array)
    if not contiguous.flags.writeable:
        contiguous = contiguous.copy()  # torch warns of memory that is not to be written
    try:
        return torch.from_numpy(contiguous)
    except (TypeError, ValueError) as error:  # objects, text, dates, records, the other byte order
        expected = "an array of numbers in this machine's byte order"
        raise NotProtectable(path, array, expected=expected, way_out=f"convert it: {error}") from error


def _scalar(path: str, value: Any) -> Any:
    if isinstance(value, float):
        return {"f": value.hex()}  # NaN and infinities are no JSON, and every bit must survive
    if isinstance(value, int) and value.bit_length() > _INT_BITS:
        return {"i": hex(value)}
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotProtectable(path, value, expected="text that is valid Unicode") from error
    return value


def unflatten(structure: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The inverse of flatten; tensors are used as they are.

    Raises:
        ValueError: the structure is none that flatten makes.
        KeyError: a tensor is absent.
    """
    if not isinstance(structure, dict):
        return structure
    if len(structure) == 2 and "n" in structure:  # noqa: PLR2004 - {"n": name, "shape": ...}
        return tensors[structure["n"]].numpy().reshape(structure["shape"])
    if len(structure) != 1:
        raise ValueError(f"unknown node {sorted(structure)} in a state structure")
    ((kind, body),) = structure.items()
    if kind == "t":
        return tensors[body]
    if kind == "f":
        return float.fromhex(body)
    if kind == "i":
        return int(body, 16)
    if kind == "d":
        return {key: unflatten(item, tensors) for key, item in body}
    if kind in {"l", "u"}:
        parts = [unflatten(item, tensors) for item in body]
        return parts if kind == "l" else tuple(parts)
    raise ValueError(f"unknown node {kind!r} in a state structure")


def renamed(structure: Any, names: Mapping[str, str]) -> Any:
    """The structure with other names for its tensors."""
    if not isinstance(structure, dict):
        return structure
    if "t" in structure:
        return {"t": names[structure["t"]]}
    if "n" in structure:
        return {**structure, "n": names[structure["n"]]}
    if "d" in structure:
        return {"d": [[key, renamed(item, names)] for key, item in structure["d"]]}
    return {
        kind: [renamed(item, names) for item in body] if kind in {"l", "u"} else body
        for kind, body in structure.items()
    }


def names_in(structure: Any) -> Iterator[str]:
    """The names of the structure's tensors, in order; one that is referred to twice comes twice."""
    if isinstance(structure, dict):
        for kind, body in structure.items():
            if kind in {"t", "n"}:
                yield body
            elif kind == "d":
                for _, item in body:
                    yield from names_in(item)
            elif kind in {"l", "u"}:
                for item in body:
                    yield from names_in(item)


def copied(state: Any) -> Any:
    """The same nested state with tensors of its own."""
    tensors: dict[str, torch.Tensor] = {}
    structure = flatten("state", state, tensors)
    return unflatten(structure, {name: tensor.detach().clone() for name, tensor in tensors.items()})
