"""Nested state as plain data: a JSON structure with numbered tensors beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_SCALARS = (str, int, float, bool, type(None))
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


def flatten(path: str, value: Any, tensors: list[torch.Tensor], depth: int = 0) -> Any:
    """The structure of ``value`` as JSON; its tensors are appended to ``tensors``, arrays share their memory.

    Raises:
        NotProtectable: names the leaf; ``tensors`` may hold leaves that were met before it.
    """
    if depth > MAX_DEPTH:
        raise NotProtectable(path, value)
    if isinstance(value, torch.Tensor):
        if value.is_meta:
            raise NotProtectable(path, value)
        tensors.append(value)
        return {"t": len(tensors) - 1}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise NotProtectable(path, value)
        tensors.append(torch.from_numpy(np.ascontiguousarray(value)))
        return {"n": len(tensors) - 1, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return flatten(path, value.item(), tensors, depth)
    if isinstance(value, dict):
        items = []
        for key, item in value.items():
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise NotProtectable(f"{path}.{key!r} (key)", key)
            items.append([key, flatten(f"{path}.{key}", item, tensors, depth + 1)])
        return {"d": items}
    if isinstance(value, (list, tuple)):
        parts = [flatten(f"{path}[{i}]", item, tensors, depth + 1) for i, item in enumerate(value)]
        return {"l": parts} if isinstance(value, list) else {"u": parts}
    if isinstance(value, _SCALARS):
        # Floats travel as hexadecimal text: NaN and infinities are no JSON, and every bit must survive.
        return {"f": value.hex()} if isinstance(value, float) else value
    raise NotProtectable(path, value)


def unflatten(structure: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of flatten; tensors are used as they are.

    Raises:
        ValueError: the structure is none that flatten makes.
    """
    if not isinstance(structure, dict):
        return structure
    if len(structure) == 2 and "n" in structure:  # noqa: PLR2004 - {"n": index, "shape": ...}
        return tensors[structure["n"]].numpy().reshape(structure["shape"])
    if len(structure) != 1:
        raise ValueError(f"unknown node {sorted(structure)} in a state structure")
    ((kind, body),) = structure.items()
    if kind == "t":
        return tensors[body]
    if kind == "f":
        return float.fromhex(body)
    if kind == "d":
        return {key: unflatten(item, tensors) for key, item in body}
    if kind in {"l", "u"}:
        parts = [unflatten(item, tensors) for item in body]
        return parts if kind == "l" else tuple(parts)
    raise ValueError(f"unknown node {kind!r} in a state structure")


def copied(state: Any) -> Any:
    """The same nested state with tensors of its own."""
    tensors: list[torch.Tensor] = []
    structure = flatten("state", state, tensors)
    return unflatten(structure, [tensor.detach().clone() for tensor in tensors])
