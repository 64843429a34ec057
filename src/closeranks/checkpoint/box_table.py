"""A million boxes of many tensors as a few columns, grouped by tensor. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Kind = tuple[str, tuple[int, ...]]  # type and whole shape of a tensor

_NAME: Final = attrgetter("name")
_KIND: Final = attrgetter("dtype", "global_shape")
_OFFSETS: Final = attrgetter("offsets")
_SHAPE: Final = attrgetter("shape")
_BLOCK: Final = 4096  # rows whose objects stay in the processor's cache while their columns are made


_MIX: Final = 0x1E3779B97F4A7C15  # odd, so that its powers are


class Boxed(Protocol):
    """What a row is made of: a slice, or a need."""

    @property
    def name(self) -> str:
        """Of the whole tensor."""

    @property
    def dtype(self) -> str:
        """Of safetensors."""

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Of the box."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the box."""


class Boxes(NamedTuple):
    """Boxes of one tensor, a row each."""

    offsets: Ints  # [boxes, dimensions]
    shapes: Ints


class BoxTable(NamedTuple):
    """Boxes of many tensors. ``order`` groups the rows by tensor and leaves their order alone otherwise."""

    tensor: Ints  # number of the tensor by row
    kind: Ints  # number of its kind by row
    place: Ints  # where the numbers of a row begin
    offsets: Ints  # of all rows, one after the other
    shapes: Ints
    order: Ints
    bounds: Ints  # of each tensor in ``order``

    def rows(self, tensor: int) -> Ints:
        """The rows of a tensor."""
        return self.order[self.bounds[tensor] : self.bounds[tensor + 1]]

    def boxes(self, rows: Ints, dimensions: int) -> Boxes:
        """Rows of one tensor as boxes."""
        at = self.place[rows][:, None] + np.arange(dimensions)
        return Boxes(self.offsets[at], self.shapes[at])


class Numbering:
    """Numbers of tensors, by name, and of kinds."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(dict.fromkeys(names))
        self._tensors = {name: number for number, name in enumerate(self.names)}
        self.kinds: dict[Kind, int] = {}

    def tensors(self, items: Sequence[Boxed]) -> list[int]:
        """The tensor of each; -1: one that was not named."""
        return list(map(self._tensors.get, map(_NAME, items), repeat(-1)))

    def kinds_of(self, items: Sequence[Boxed]) -> list[int]:
        """The kind of each."""
        found = list(map(_KIND, items))
        for kind in set(found).difference(self.kinds):
            self.kinds[kind] = len(self.kinds)
        return list(map(self.kinds.__getitem__, found))


def names_of(items: Iterable[Boxed]) -> Iterator[str]:
    """Their names."""
    return map(_NAME, items)


def table_of(parts: Iterable[Sequence[Boxed]], numbering: Numbering) -> tuple[BoxTable, Ints]:
    """The table of all boxes of tensors that have a number, and the place of each row among all boxes given."""
    blocks = [_Block.of(part[at : at + _BLOCK], numbering) for part in parts for at in range(0, len(part), _BLOCK)]
    tensor, kind, offsets, shapes = (
        np.concatenate([np.asarray(getattr(block, column), np.int64) for block in blocks] or [np.zeros(0, np.int64)])
        for column in ("tensor", "kind", "offsets", "shapes")
    )
    dimensions = np.array([len(shape) for _, shape in numbering.kinds] or [0], np.int64)[kind]
    place = np.cumsum(dimensions) - dimensions
    wanted = np.flatnonzero(tensor >= 0)
    tensor, kind, place = tensor[wanted], kind[wanted], place[wanted]
    order = np.argsort(tensor, kind="stable")
    bounds = np.searchsorted(tensor[order], np.arange(len(numbering.names) + 1))
    return BoxTable(tensor, kind, place, offsets, shapes, order, bounds), wanted


class _Block(NamedTuple):
    tensor: list[int]
    kind: list[int]
    offsets: Ints
    shapes: Ints

    @classmethod
    def of(cls, items: Sequence[Boxed], numbering: Numbering) -> _Block:
        return cls(numbering.tensors(items), numbering.kinds_of(items), _flat(_OFFSETS, items), _flat(_SHAPE, items))


def _flat(column: Any, items: Sequence[Boxed]) -> Ints:
    return np.fromiter(chain.from_iterable(map(column, items)), np.int64)


def first_of_equal(boxes: Boxes) -> Ints:
    """For each box the number of the first one that equals it."""
    rows = np.concatenate((boxes.offsets, boxes.shapes), axis=1)
    mixer = np.array([pow(_MIX, power, 2**63) for power in range(1, rows.shape[1] + 1)], np.int64)
    _, first, inverse = np.unique((rows * mixer).sum(axis=1), return_index=True, return_inverse=True)
    found = np.asarray(first[inverse], np.int64)
    if (rows[found] != rows).any():  # two boxes mixed to one number: compare them as they are
        _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        found = np.asarray(first[inverse.reshape(-1)], np.int64)
    return found


def spelled(kind: Kind) -> str:
    """For example ``F32 [8, 2]``."""
    return f"{kind[0]} {list(kind[1])}"


def by_number(kinds: Mapping[Kind, int]) -> list[Kind]:
    """Kinds in the order of their numbers."""
    return sorted(kinds, key=kinds.__getitem__)
