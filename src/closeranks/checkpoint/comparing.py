"""What differs between two generations: which tensors, by how much, and what was saved beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.format import Extent, ShardIndex, Slice
from closeranks.checkpoint.inventory import Opened
from closeranks.checkpoint.problems import NothingToRestore
from closeranks.checkpoint.restore_plan import Fetch, Inventory, Need, NoPlan, Rules, plan_restore
from closeranks.checkpoint.restoring import read_need

Progress = Callable[[int, int], None]  # bytes of tensors compared, bytes of all

_NUMPY: Final[Mapping[str, str]] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "C64": "<c8",
    "BOOL": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
}
_ITEM: Final = {"BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
_ABSENT: Final = "absent"


class TensorChange(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that both have, with other values. ``largest`` is None where they are not numbers to subtract."""

    name: str
    elements: int
    differing: int  # by their bits
    largest: float | None  # absolute difference; infinite where only one of two is not finite
    not_finite: tuple[int, int]  # NaN and infinities in each


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """From one generation to another."""

    equal: int  # tensors
    changed: tuple[TensorChange, ...]
    other_kind: tuple[tuple[str, str, str], ...]  # name, type and shape in each
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    values: tuple[tuple[str, str, str], ...]  # path of what was saved beside the tensors, value in each
    read_bytes: int  # of both; equal digests were not read


class _Whole(NamedTuple):
    """A tensor of a generation, whoever wrote its parts."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[tuple[int, Slice], ...]  # by writer


def compare(first: Opened, second: Opened, progress: Progress | None = None) -> Difference:
    """Compare bit by bit. Tensors whose digests say that they are equal are not read; the others one at a time.

    Raises:
        NothingToRestore: a part of a tensor is in no home.
        Damaged, StoreProblem: a part cannot be read.
    """
    ours, theirs = _wholes(first.indices), _wholes(second.indices)
    both = [name for name in ours if name in theirs]
    other_kind = tuple((name, _kind(ours[name]), _kind(theirs[name])) for name in both if _differ(ours, theirs, name))
    alike = [name for name in both if not _differ(ours, theirs, name)]
    doubtful = _doubtful(first, second, alike, ours, theirs)
    changed = []
    done, total = 0, sum(2 * _size(ours[name]) for name in doubtful)
    read_first, read_second = _Tensors(first, ours, doubtful), _Tensors(second, theirs, doubtful)
    for number, name in enumerate(doubtful):
        change = _change(name, ours[name].dtype, read_first.read(number), read_second.read(number))
        done += 2 * _size(ours[name])
        if progress is not None:
            progress(done, total)
        if change is not None:
            changed.append(change)
    return Difference(
        equal=len(alike) - len(changed),
        changed=tuple(changed),
        other_kind=other_kind,
        only_first=tuple(name for name in ours if name not in theirs),
        only_second=tuple(name for name in theirs if name not in ours),
        values=tuple(_values(first.indices, second.indices)),
        read_bytes=total,
    )


def _wholes(indices: Mapping[int, ShardIndex]) -> dict[str, _Whole]:
    parts: dict[str, list[tuple[int, Slice]]] = {}
    for writer, index in sorted(indices.items()):
        for part in index.slices:
            parts.setdefault(part.name, []).append((writer, part))
    return {
        name: _Whole(found[0][1].dtype, found[0][1].global_shape, tuple(found)) for name, found in sorted(parts.items())
    }


def _kind(whole: _Whole) -> str:
    return f"{whole.dtype} {list(whole.shape)}"


def _size(whole: _Whole) -> int:
    return sum(part.length for _, part in whole.parts)


def _differ(ours: Mapping[str, _Whole], theirs: Mapping[str, _Whole], name: str) -> bool:
    return ours[name][:2] != theirs[name][:2]


def _doubtful(
    first: Opened, second: Opened, names: Sequence[str], ours: Mapping[str, _Whole], theirs: Mapping[str, _Whole]
) -> list[str]:
    """Those whose digests do not prove that they are equal."""
    digests = [{writer: _Digests(index) for writer, index in opened.indices.items()} for opened in (first, second)]

    def proof(of: Mapping[int, _Digests], whole: _Whole) -> list[object]:
        return [(part.offsets, part.shape, of[writer].of(part)) for writer, part in whole.parts]

    return [
        name for name in names if _size(ours[name]) and proof(digests[0], ours[name]) != proof(digests[1], theirs[name])
    ]


class _Digests:
    """Digests of the extents that hold a slice."""

    def __init__(self, index: ShardIndex) -> None:
        self._extents = index.extents
        self._ends = np.array([extent.at + extent.length for extent in index.extents])

    def of(self, part: Slice) -> list[tuple[int, int, str]]:
        """Where they lie relative to the slice, and their digests."""
        number, found = int(np.searchsorted(self._ends, part.at, "right")), []
        while number < len(self._extents) and self._extents[number].at < part.at + part.length:
            extent = self._extents[number]
            found.append((extent.at - part.at, extent.length, _digest(extent)))
            number += 1
        return found


def _digest(extent: Extent) -> str:
    return extent.blake3 or extent.xxh3


class _Tensors:
    """Reads whole tensors of one generation, one at a time; planned together."""

    def __init__(self, opened: Opened, wholes: Mapping[str, _Whole], names: Sequence[str]) -> None:
        self._opened = opened
        self._needs = [
            Need(
                reader=0,
                name=name,
                dtype=wholes[name].dtype,
                global_shape=wholes[name].shape,
                offsets=(0,) * len(wholes[name].shape),
                shape=wholes[name].shape,
            )
            for name in names
        ]
        plan = plan_restore(
            Inventory(points=(opened.point,)), self._needs, Rules(trusted=False, group=opened.point.group, whole=False)
        )
        if isinstance(plan, NoPlan):
            raise NothingToRestore(plan.reason)
        self._reads: dict[int, list[Fetch]] = {}
        for read in plan.fetches:
            self._reads.setdefault(read.need, []).append(read)

    def read(self, number: int) -> memoryview:
        """The bytes of a tensor, checked."""
        return read_need(self._opened, self._needs[number], self._reads.get(number, []))


def _change(name: str, dtype: str, ours: memoryview, theirs: memoryview) -> TensorChange | None:
    """What differs; None if no bit does."""
    kind = np.dtype(_NUMPY.get(dtype) or f"u{_ITEM[dtype]}")
    bits = np.dtype(f"u{kind.itemsize}")
    one, other = np.frombuffer(ours, bits), np.frombuffer(theirs, bits)
    differing = int(np.count_nonzero(one != other))
    if not differing:
        return None
    first, second = _numbers(ours, dtype, kind), _numbers(theirs, dtype, kind)
    largest, not_finite = None, (0, 0)
    if first is not None and second is not None:
        largest, not_finite = _largest(first, second), (_strange(first), _strange(second))
    return TensorChange(name=name, elements=len(one), differing=differing, largest=largest, not_finite=not_finite)


def _numbers(data: memoryview, dtype: str, kind: np.dtype[Any]) -> NDArray[Any] | None:
    """As numbers that numpy can subtract."""
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return None if dtype in _ITEM else np.frombuffer(data, kind)


def _largest(one: NDArray[Any], other: NDArray[Any]) -> float:
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(wide) - other.astype(wide))
    same = (one == other) | ((one != one) & (other != other))  # noqa: PLR0124 - NaN is the only one unlike itself
    apart = np.where(same, 0.0, np.where(np.isnan(apart), math.inf, apart))
    return float(apart.max())


def _strange(numbers: NDArray[Any]) -> int:
    return 0 if numbers.dtype.kind in "iu" else int(np.count_nonzero(~np.isfinite(numbers)))


def _values(ours: Mapping[int, ShardIndex], theirs: Mapping[int, ShardIndex]) -> Iterator[tuple[str, str, str]]:
    """What differs in the JSON beside the tensors, path by path."""
    for writer in sorted({*ours, *theirs}):
        one, other = ours.get(writer), theirs.get(writer)
        for part in ("shared", "local"):
            where = part if part == "shared" else f"local of writer {writer}"
            yield from _json(where, getattr(one, part, None), getattr(other, part, None))


def _json(where: str, one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*one, *other)):
            yield from _json(f"{where}/{key}", one.get(key, _ABSENT), other.get(key, _ABSENT))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from _json(f"{where}/{number}", mine, its)
    elif one != other:
        yield where, _short(one), _short(other)


def _short(value: Any) -> str:
    text = value if value is _ABSENT else msgspec.json.encode(value).decode()
    return text if len(text) <= 100 else f"{text[:97]}..."  # noqa: PLR2004 - a line
