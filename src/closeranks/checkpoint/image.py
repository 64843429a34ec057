"""How the state of one writer becomes one file image: a safetensors header, then every tensor's bytes without gaps.

Tensors lie in descending order of their item size, so that each begins at a multiple of it. The header is padded with
spaces to a multiple of ``ALIGNMENT_BYTES``: the bytes can be written without the page cache and mapped as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from closeranks.checkpoint.format import DATA_PREFIX, Slice
from closeranks.checkpoint.problems import Damaged

ALIGNMENT_BYTES: Final = 4096
HEADER_LIMIT_BYTES: Final = 100_000_000  # the limit of the safetensors readers
IMAGE_LIMIT_BYTES: Final = 2**46
DIMENSIONS_LIMIT: Final = 64
DTYPES: Final[Mapping[str, int]] = MappingProxyType(
    {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8, "BOOL": 1}
    | {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1}
)
"""Bytes of one item, by the name that safetensors gives the type."""

_METADATA = "__metadata__"
_LENGTH_BYTES = 8


class Leaf(NamedTuple):
    """A box of one tensor that a writer contributes."""

    name: str  # of the whole tensor
    dtype: str  # a key of DTYPES
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class Layout(NamedTuple):
    """Where everything goes in an image of ``image_bytes``."""

    header: bytes  # the first bytes of the image
    slices: tuple[Slice, ...]  # in the order of the leaves
    image_bytes: int


class Stored(NamedTuple):
    """A tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    at: int  # first byte in the file
    length: int  # bytes


class Header(NamedTuple):
    """What a safetensors file says about itself."""

    tensors: Mapping[str, Stored]  # in the order of their bytes
    metadata: Mapping[str, str]
    file_bytes: int


def image_key(attempt: str, writer: int) -> str:
    """The key of a writer's image, or of the part of it that changed."""
    return f"{DATA_PREFIX}{attempt}/w{writer:05d}.safetensors"


def index_key(attempt: str, writer: int) -> str:
    """The key of a writer's ShardIndex."""
    return f"{DATA_PREFIX}{attempt}/w{writer:05d}.json"


def tensor_key(leaf: Leaf | Slice) -> str:
    """The name in the safetensors header: of the tensor, with ``@`` and the box's offsets where it is only a part."""
    if leaf.shape == leaf.global_shape:
        return leaf.name
    return f"{leaf.name}@{','.join(map(str, leaf.offsets))}"


def lay_out(leaves: Sequence[Leaf]) -> Layout:
    """Give every leaf its place. The same leaves give the same bytes.

    Raises:
        ValueError: a leaf is impossible (unknown type, a box outside its tensor, one name twice); it is named.
    """
    lengths = [_length_of(leaf) for leaf in leaves]
    order = sorted(range(len(leaves)), key=lambda number: -DTYPES[leaves[number].dtype])
    begins, data_bytes = _begins(order, lengths)
    header = _header(leaves, order, begins, lengths)
    if len(header) + data_bytes > IMAGE_LIMIT_BYTES:
        raise ValueError(f"the image would have {len(header) + data_bytes} bytes, more than {IMAGE_LIMIT_BYTES}")
    slices = tuple(
        Slice(
            name=leaf.name,
            dtype=leaf.dtype,
            global_shape=leaf.global_shape,
            offsets=leaf.offsets,
            shape=leaf.shape,
            at=len(header) + begin,
            length=length,
        )
        for leaf, begin, length in zip(leaves, begins, lengths, strict=True)
    )
    return Layout(header, slices, len(header) + data_bytes)


def _begins(order: Iterable[int], lengths: Sequence[int]) -> tuple[list[int], int]:
    begins, at = [0] * len(lengths), 0
    for number in order:
        begins[number] = at
        at += lengths[number]
    return begins, at


def _header(leaves: Sequence[Leaf], order: Iterable[int], begins: Sequence[int], lengths: Sequence[int]) -> bytes:
    entries: dict[str, Any] = {_METADATA: {"format": "pt"}}
    for number in order:
        leaf, begin = leaves[number], begins[number]
        key = tensor_key(leaf)
        if key in entries:
            raise ValueError(f"{key!r} names two tensors of one image; give one of them another name")
        entries[key] = {
            "dtype": leaf.dtype,
            "shape": leaf.shape,
            "data_offsets": (begin, begin + lengths[number]),
        }
    text = msgspec.json.encode(entries)
    padded = -(-(_LENGTH_BYTES + len(text)) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES - _LENGTH_BYTES
    if padded > HEADER_LIMIT_BYTES:
        raise ValueError(f"the names of {len(leaves)} tensors take {padded} bytes, more than {HEADER_LIMIT_BYTES}")
    return padded.to_bytes(_LENGTH_BYTES, "little") + text.ljust(padded)


def _length_of(leaf: Leaf) -> int:
    problem = box_problem(leaf)
    if problem:
        raise ValueError(f"tensor {leaf.name!r}: {problem}")
    return math.prod(leaf.shape) * DTYPES[leaf.dtype]


def box_problem(leaf: Leaf | Slice) -> str:
    """Why the box cannot be one of its tensor, in words; empty when it can."""
    if not leaf.name or leaf.name == _METADATA:
        return "a tensor needs a name of its own"
    if leaf.dtype not in DTYPES:
        return f"type {leaf.dtype!r} is not one of {', '.join(DTYPES)}"
    if not len(leaf.global_shape) == len(leaf.offsets) == len(leaf.shape) <= DIMENSIONS_LIMIT:
        return f"shape {leaf.global_shape}, box {leaf.shape} at {leaf.offsets} differ in dimensions"
    for whole, begin, size in zip(leaf.global_shape, leaf.offsets, leaf.shape, strict=True):
        if min(whole, begin, size) < 0 or begin + size > whole:
            return f"box {leaf.shape} at {leaf.offsets} is not inside shape {leaf.global_shape}"
    if math.prod(leaf.shape) * DTYPES[leaf.dtype] > IMAGE_LIMIT_BYTES:
        return f"box {leaf.shape} is larger than {IMAGE_LIMIT_BYTES} bytes"
    return ""


# --- reading a header back --------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def header_bytes(first: bytes) -> int:
    """The length of the whole header, from the first eight bytes of a safetensors file.

    Raises:
        Damaged: the number cannot be one.
    """
    length = int.from_bytes(first[:_LENGTH_BYTES], "little")
    if len(first) < _LENGTH_BYTES or not 0 < length <= HEADER_LIMIT_BYTES:
        raise Damaged(f"safetensors header: expected a length of 1 to {HEADER_LIMIT_BYTES} bytes, got {length}")
    return _LENGTH_BYTES + length


def read_header(head: bytes) -> Header:
    """What a safetensors header says, checked: known types, shapes that fit their bytes, no gap and no overlap.

    ``head`` begins with the whole header; what comes after it is not looked at.

    Raises:
        Damaged: it is not a safetensors header, or it contradicts itself.
    """
    data_at = header_bytes(head)
    if len(head) < data_at:
        raise Damaged(f"safetensors header: expected {data_at} bytes, got {len(head)}")
    try:
        raw = msgspec.json.decode(head[_LENGTH_BYTES:data_at], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop(_METADATA, msgspec.Raw(b"{}")), type=dict[str, str])
        entries = {key: msgspec.json.decode(value, type=_Entry) for key, value in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"safetensors header: {error}") from error
    tensors, at = {}, 0
    for key, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        leaf = Leaf(key, entry.dtype, entry.shape, (0,) * len(entry.shape), entry.shape)
        problem = box_problem(leaf)
        if not problem and (begin != at or end - begin != math.prod(entry.shape) * DTYPES[entry.dtype]):
            problem = f"shape {entry.shape} from byte {at} does not fit bytes {begin} to {end}"
        if problem:
            raise Damaged(f"safetensors header: {key!r}: {problem}")
        tensors[key] = Stored(entry.dtype, entry.shape, data_at + begin, end - begin)
        at = end
    return Header(tensors, metadata, data_at + at)
