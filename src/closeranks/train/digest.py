"""Digests of tensors and of the small state beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch
from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Iterable


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's elements as bytes; without a copy where it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data


def digest(tensors: Iterable[tuple[str, torch.Tensor]], other: Any) -> str:
    """blake3 over names, types, shapes and elements, and over ``other`` (JSON), as 32 hex digits.

    Equal digests mean equal bits: -0.0 and 0.0 differ, NaNs with other payloads differ.
    """
    hasher = blake3()
    for name, tensor in tensors:
        hasher.update(f"{name}|{tensor.dtype}|{list(tensor.shape)}|".encode())
        hasher.update(raw_bytes(tensor))
    hasher.update(msgspec.json.encode(other))
    return hasher.hexdigest()[:32]
