"""The ``.metadata`` file of torch.distributed.checkpoint, read without running anything that it contains.

It is a pickle, so it can name any function and have it called. Here every name in it stands for a record of our own,
made anew for each file; a name that is not expected is refused before anything is called.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from closeranks.checkpoint.problems import Damaged, StoreRefused

if TYPE_CHECKING:
    from pathlib import Path

_LIMIT_BYTES: Final = 2**30
_METADATA, _FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_RECORDS: Final = frozenset(
    {
        (_METADATA, "Metadata"),
        (_METADATA, "TensorStorageMetadata"),
        (_METADATA, "BytesStorageMetadata"),
        (_METADATA, "TensorProperties"),
        (_METADATA, "ChunkStorageMetadata"),
        (_METADATA, "MetadataIndex"),
        (_METADATA, "StorageMeta"),
        (_METADATA, "_MEM_FORMAT_ENCODING"),
        (_FILES, "_StorageInfo"),
        (_FILES, "_StoragePrefix"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
    }
)


class Chunk(NamedTuple):
    """A box of a tensor, and where its bytes are."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    at: int
    length: int


class DcpTensor(NamedTuple):
    """A tensor and the boxes that it was saved as."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class DcpItem(NamedTuple):
    """One entry of the state: a tensor, or an object that was pickled by itself."""

    path: tuple[str | int, ...]  # keys that lead to it in the nested state
    tensor: DcpTensor | None
    place: Chunk | None  # of an object


def read_metadata(file: Path) -> list[DcpItem]:
    """What a checkpoint of torch.distributed.checkpoint holds.

    Raises:
        StoreRefused: it names something else than the records of such a file; nothing of it was called.
        Damaged: it is no such file.
    """
    with file.open("rb") as stream:
        data = stream.read(_LIMIT_BYTES + 1)
    if len(data) > _LIMIT_BYTES:
        raise Damaged(f"{file}: more than {_LIMIT_BYTES} bytes; this is no index of a checkpoint")
    try:
        return _items(_Unpickler(io.BytesIO(data), str(file)).load())
    except StoreRefused:
        raise
    except Exception as error:  # a broken pickle can raise anything
        raise Damaged(f"{file}: not the metadata of torch.distributed.checkpoint: {error!r}") from error


class _Record:
    """Stands for an object of the file; keeps what it was made of, and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.fields: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.fields = dict(state) if isinstance(state, dict) else {"state": state}

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, where: str) -> None:
        super().__init__(stream)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECORDS:
            return type(name, (_Record,), {})  # anew each time: what a file does to it, it does to itself
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        raise StoreRefused(
            f"{self._where}: it names {module}.{name}, which has no place in the metadata of a checkpoint; "
            "nothing of it was run. Import it only from a source that you trust, by torch.distributed.checkpoint itself"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise StoreRefused(f"{self._where}: it refers to outside objects ({pid!r}); nothing of it was run")


def _items(metadata: Any) -> list[DcpItem]:
    fields = metadata.fields
    paths = fields.get("planner_data") or {}
    places: dict[tuple[str, tuple[int, ...] | None], Any] = {}
    for index, info in fields["storage_data"].items():
        offset = index.fields.get("offset")
        places[index.fields["fqn"], None if offset is None else _numbers(offset)] = info.fields
    items = []
    for name, entry in fields["state_dict_metadata"].items():
        path = tuple(key if isinstance(key, int) else str(key) for key in paths.get(name, (name,)))
        if type(entry).__name__ == "BytesStorageMetadata":
            items.append(DcpItem(path, None, _chunk((), (), places[name, None])))
            continue
        shape = _numbers(entry.fields["size"])
        chunks = tuple(
            _chunk(offsets := _numbers(chunk.fields["offsets"]), _numbers(chunk.fields["sizes"]), places[name, offsets])
            for chunk in entry.fields["chunks"]
        )
        dtype = entry.fields["properties"].fields["state"][0]
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"{name}: type {dtype!r}")
        items.append(DcpItem(path, DcpTensor(dtype, shape, chunks), None))
    return items


def _numbers(values: Any) -> tuple[int, ...]:
    numbers = tuple(int(value) for value in values)
    if any(number < 0 for number in numbers):
        raise ValueError(f"expected numbers from 0, got {numbers}")
    return numbers


def _chunk(offsets: tuple[int, ...], shape: tuple[int, ...], info: dict[str, Any]) -> Chunk:
    if info.get("transform_descriptors"):
        raise ValueError(f"{info['relative_path']}: it is transformed by {info['transform_descriptors']}")
    at, length = _numbers((info["offset"], info["length"]))
    return Chunk(offsets, shape, str(info["relative_path"]), at, length)
