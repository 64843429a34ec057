"""Memory that a checkpoint is read into before anything live is touched, and what was found not to fit meanwhile."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from closeranks.checkpoint.image import Leaf
from closeranks.checkpoint.problems import Mismatch
from closeranks.train.boxes import TYPES, boxes_of, is_distributed, plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAMED = 8  # names that a message lists of each kind; it counts the others


class Held(NamedTuple):
    """A whole tensor of a checkpoint."""

    dtype: str
    global_shape: tuple[int, ...]
    elements: int  # that the slices have, counted without regard to overlaps


class Rules(NamedTuple):
    """What counts as a fit."""

    strict: bool = True  # False: what is missing stays as it is, what is unexpected is passed over; both are noted
    cast: bool = False  # True: elements are converted to the type that the live tensor has


class Findings:
    """Everything that does not fit, collected before it is reported as a whole."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.missing: list[str] = []  # live, not in the checkpoint
        self.unexpected: list[str] = []  # in the checkpoint, not live
        self.different: list[str] = []
        self.notes: list[str] = []

    def keys(self, path: str, live: Any, saved: Any) -> None:
        """Compare the names of two levels that should be equal."""
        self.missing += [f"{path}{key}" for key in live if key not in saved]
        self.unexpected += [f"{path}{key}" for key in saved if key not in live]

    def fits(self, name: str, shape: Sequence[int], dtype: torch.dtype, held: Held) -> bool:
        """Whether a whole tensor of the checkpoint can go into a live one of this shape and type; noted if not."""
        if held.global_shape != tuple(shape):
            self.different.append(f"{name}: expected shape {list(shape)}, got {list(held.global_shape)}")
        elif TYPES[held.dtype] != dtype and not self.rules.cast:
            self.different.append(f"{name}: expected {dtype}, got {TYPES[held.dtype]} (cast=True converts)")
        else:
            return True
        return False

    def settle(self, where: str) -> list[str]:
        """The notes of a load that goes on.

        Raises:
            Mismatch: it does not; everything that does not fit is in the message.
        """
        kinds = [
            ("missing in it", self.missing, not self.rules.strict),
            ("unexpected in it", self.unexpected, not self.rules.strict),
            ("different", self.different, False),
        ]
        told = [f"{kind}: {_listed(names)}" for kind, names, _ in kinds if names]
        if any(names and not forgiven for _, names, forgiven in kinds):
            way_out = "" if self.different else "; strict=False loads what both have"
            raise Mismatch(f"{where} does not fit: {'; '.join(told)}{way_out}. Nothing was changed")
        return self.notes + told


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


class Scratch:
    """Boxes to be read, each into memory of its own; equal ones share it."""

    def __init__(self, tensors: Mapping[str, Held], findings: Findings) -> None:
        self.tensors = tensors
        self.findings = findings
        self._boxes: dict[Leaf, torch.Tensor] = {}
        self._into: list[tuple[torch.Tensor, torch.Tensor]] = []  # parts of DTensors, and the boxes they are made of

    @property
    def needs(self) -> list[Leaf]:
        """What is to be read."""
        return list(self._boxes)

    @property
    def targets(self) -> list[memoryview]:
        """Where the bytes of each need go."""
        return [tensor.reshape(-1).view(torch.uint8).numpy().data for tensor in self._boxes.values()]

    def box(self, leaf: Leaf) -> torch.Tensor:
        """Memory for a box, of the type that the checkpoint has."""
        leaf = leaf._replace(dtype=self.tensors[leaf.name].dtype)
        if leaf not in self._boxes:
            self._boxes[leaf] = torch.empty(leaf.shape, dtype=TYPES[leaf.dtype])
        return self._boxes[leaf]

    def whole(self, name: str) -> torch.Tensor:
        """Memory for all of a tensor."""
        held = self.tensors.get(name)
        if held is None:
            self.findings.missing.append(name)
            return torch.empty(0)
        shape = held.global_shape
        if math.prod(shape) > held.elements:  # before it allocates what nobody saved
            self.findings.different.append(f"{name}: expected {math.prod(shape)} elements, got {held.elements}")
            return torch.empty(0)
        return self.box(Leaf(name, held.dtype, shape, (0,) * len(shape), shape))

    def like(self, name: str, live: torch.Tensor) -> torch.Tensor:
        """A tensor to be filled that is distributed, or not, as the live one is; of the checkpoint's type."""
        if not is_distributed(live):
            return self.whole(name)
        twin = empty_twin(live, TYPES[self.tensors[name].dtype])
        self._into += [(box.memory, self.box(box.leaf)) for box in boxes_of(name, twin)]
        return twin

    def assemble(self) -> None:
        """After the reading: put the boxes of DTensors where they belong."""
        for memory, box in self._into:
            memory.copy_(box)


def empty_twin(live: Any, dtype: torch.dtype) -> torch.Tensor:
    """A DTensor with uninitialised memory of its own, cut and placed like ``live``."""
    from torch.distributed.tensor import DTensor

    local = torch.empty(live._local_tensor.shape, dtype=dtype, device=live._local_tensor.device)
    twin: torch.Tensor = DTensor.from_local(
        local, live.device_mesh, live.placements, run_check=False, shape=live.shape, stride=live.stride()
    )
    return twin


def fitted(source: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """The source's elements in the live tensor's type."""
    return source if source.dtype == live.dtype else source.to(live.dtype)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements that lie here."""
    return plain(getattr(tensor, "_local_tensor", tensor))
