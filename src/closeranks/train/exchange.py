"""Checkpoints to and from other formats. Nothing here runs code that a file contains."""

from __future__ import annotations

import math
import mmap
import os
import pickle
import secrets
import shutil
import socket
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import torch

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Manifest
from closeranks.checkpoint.gather import publish_index
from closeranks.checkpoint.image import Leaf, header_bytes, lay_out, read_header
from closeranks.checkpoint.inventory import Home
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.problems import Damaged, SaveFailed, StoreRefused
from closeranks.checkpoint.restore_plan import Need, Point
from closeranks.checkpoint.restore_plan import Rules as PlanRules
from closeranks.checkpoint.restoring import Restored, restore
from closeranks.checkpoint.stores.opening import found, open_store, probe
from closeranks.checkpoint.writing import Options, write_shard
from closeranks.train import tree
from closeranks.train.boxes import TYPES
from closeranks.train.capture import capture, copy_into
from closeranks.train.read_dcp import read_dcp
from closeranks.train.restore import saved_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from closeranks.checkpoint.format import ShardIndex
    from closeranks.checkpoint.restoring import Progress
    from closeranks.checkpoint.stores.store import Store
    from closeranks.train.scratch import Held

_STRUCTURE: Final = "closeranks"  # key of our metadata in an exported file


class Exported(NamedTuple):
    """What was written."""

    generation: int
    step: int
    tensors: int
    written_bytes: int


class Imported(NamedTuple):
    """What was committed."""

    generation: int
    step: int
    tensors: int
    written_bytes: int


# --- out --------------------------------------------------------------------------------------------------------


def export_safetensors(
    store: str, file: Path, generation: int | None = None, progress: Progress | None = None
) -> Exported:
    """One safetensors file of a generation (None: the newest good one): whole tensors, every byte checked.

    State that belongs to single seats is left out. The rest of the state is JSON in the file's metadata, so that
    ``import_safetensors`` brings all of it back.

    Raises:
        CheckpointProblem: it cannot be read as a whole; there is no file then.
        FileExistsError: there is one already; it was left alone.
    """
    with _new(file) as part, part.open("w+b") as out:
        maps: list[mmap.mmap] = []

        def targets(tensors: Mapping[str, Held], shared: Any) -> tuple[list[Leaf], list[memoryview]]:
            leaves = _wholes(tensors)
            layout = lay_out(leaves)
            header = _with_metadata(layout.header, {_STRUCTURE: msgspec.json.encode(shared).decode()})
            moved = len(header) - len(layout.header)
            os.truncate(out.fileno(), layout.image_bytes + moved)
            maps.append(mmap.mmap(out.fileno(), layout.image_bytes + moved))
            view = memoryview(maps[0])
            view[: len(header)] = header
            return leaves, [view[one.at + moved : one.at + moved + one.length] for one in layout.slices]

        restored, leaves = _read(store, generation, targets, progress)
        maps[0].flush()
        os.fsync(out.fileno())
        return _exported(restored, leaves, os.fstat(out.fileno()).st_size)


def export_dcp(store: str, folder: Path, generation: int | None = None, progress: Progress | None = None) -> Exported:
    """A checkpoint of torch.distributed.checkpoint: a dict under each name of the state, as its state_dict was.

    Optimizers have their state by the names of parameters, as ``get_optimizer_state_dict`` makes it. The whole state
    passes through this process's memory.

    Raises:
        CheckpointProblem: it cannot be read as a whole; there is no folder then.
        FileExistsError: there is one already; it was left alone.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    memory: dict[str, torch.Tensor] = {}
    shares: list[Any] = []

    def targets(tensors: Mapping[str, Held], shared: Any) -> tuple[list[Leaf], list[memoryview]]:
        leaves = _wholes(tensors)
        shares[:] = [shared]
        memory.clear()
        memory.update((leaf.name, torch.empty(leaf.shape, dtype=TYPES[leaf.dtype])) for leaf in leaves)
        return leaves, [memory[leaf.name].reshape(-1).view(torch.uint8).numpy().data for leaf in leaves]

    with _new(folder) as part:
        restored, leaves = _read(store, generation, targets, progress)
        shared = shares[0]
        state = {
            name: _by_name(tree.unflatten(structure, memory), shared.get("parameters", {}).get(name))
            for name, structure in shared["values"].items()
        }
        save(state, storage_writer=FileSystemWriter(part), no_dist=True)
        return _exported(restored, leaves, sum(one.stat().st_size for one in part.iterdir()))


def _read(text: str, generation: int | None, targets: Any, progress: Progress | None) -> tuple[Restored, list[Leaf]]:
    store = open_store(text)
    leaves: list[Leaf] = []

    def wanted(point: Point, indices: Mapping[int, ShardIndex]) -> tuple[Sequence[Need], Sequence[memoryview]]:
        saved = saved_of(indices.values(), 0, point.world, "")
        if not isinstance(saved.shared, dict) or not isinstance(saved.shared.get("values"), dict):
            raise Damaged(f"{store.url}: generation {point.generation} has no structure")
        tensors = {name: held for name, held in saved.tensors.items() if not name.startswith("seat/")}
        for name, held in tensors.items():
            if math.prod(held.global_shape) > held.elements:
                raise Damaged(
                    f"{store.url}: {name}: expected {math.prod(held.global_shape)} elements, got {held.elements}"
                )
        leaves[:], memory = targets(tensors, saved.shared)
        return [Need(reader=0, **leaf._asdict()) for leaf in leaves], memory

    try:
        found(store, "", make=False, now_wall_s=time.time())
        home = Home(name=store.url, tier=0, store=store, log=CommitLog(store))
        return restore([home], wanted, PlanRules(generation=generation, trusted=generation is None), progress), leaves
    finally:
        store.close()


def _wholes(tensors: Mapping[str, Held]) -> list[Leaf]:
    return [
        Leaf(name, held.dtype, held.global_shape, (0,) * len(held.global_shape), held.global_shape)
        for name, held in tensors.items()
    ]


def _with_metadata(header: bytes, metadata: Mapping[str, str]) -> bytes:
    entries = msgspec.json.decode(header[8:])
    entries["__metadata__"] |= metadata
    body = msgspec.json.encode(entries)
    body = body.ljust(-(-len(body) // 8) * 8)
    return len(body).to_bytes(8, "little") + body


def _by_name(value: Any, names: list[list[str]] | None) -> Any:
    """An optimizer's state under the names of its parameters, without the name of their model."""
    if names is None:
        return value
    plain = [[name.partition("/")[2] for name in group] for group in names]
    keys = [key for group in value["param_groups"] for key in group["params"]]
    by_key = dict(zip(keys, [name for group in plain for name in group], strict=True))
    groups = [{**group, "params": own} for group, own in zip(value["param_groups"], plain, strict=True)]
    return {"state": {by_key[key]: entry for key, entry in value["state"].items()}, "param_groups": groups}


def _exported(restored: Restored, leaves: list[Leaf], written_bytes: int) -> Exported:
    point = restored.point
    assert point.generation is not None
    return Exported(point.generation, point.step, len(leaves), written_bytes)


@contextmanager
def _new(target: Path) -> Iterator[Path]:
    """A path beside the target that takes its place when all went well, and is removed when it did not."""
    if target.exists():
        raise FileExistsError(f"{target}: there is something already; choose another name or remove it")
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        yield part
        part.rename(target)
    except BaseException:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)
        raise


# --- in ---------------------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """What an import commits under."""

    job: str = "default"
    step: int = 0
    under: str = "model"  # the name of the state, where the file has tensors at its top


def import_dcp(folder: Path, store: str, origin: Origin = Origin()) -> Imported:  # noqa: B008 - a frozen value
    """Commit what torch.distributed.checkpoint saved as a new generation.

    Raises:
        StoreRefused: it holds what only running code could load; names it. Or the store is another job's.
        Damaged: it is incomplete. Nothing was committed in any case.
    """
    return _commit(read_dcp(folder), store, origin)


def import_torch(file: Path, store: str, origin: Origin = Origin()) -> Imported:  # noqa: B008 - a frozen value
    """Commit what ``torch.save`` wrote as a new generation; only tensors and plain data are loaded.

    Raises:
        StoreRefused: it holds what only running code could load. Or the store is another job's.
        Damaged: it is no such file. Nothing was committed in any case.
    """
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        way_out = "save its state_dict() instead of the object"
        raise StoreRefused(f"{file}: it can only be loaded by running code, which is not done; {way_out}") from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise Damaged(f"{file}: not a file of torch.save: {error}") from error
    if not isinstance(state, dict):
        raise StoreRefused(f"{file}: expected a dict such as a state_dict(), got {type(state).__name__}")
    return _commit(state, store, origin)


def import_safetensors(file: Path, store: str, origin: Origin = Origin()) -> Imported:  # noqa: B008 - a frozen value
    """Commit a safetensors file as a new generation; one of ``export_safetensors`` comes back as it was.

    Raises:
        Damaged: it is no such file. Nothing was committed.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(8)
        head += stream.read(min(header_bytes(head), size) - 8)
        header = read_header(head)
        if header.file_bytes != size:
            raise Damaged(f"{file}: expected {header.file_bytes} bytes, got {size}")
        view = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    memory = torch.frombuffer(view, dtype=torch.uint8)
    tensors = {
        name: memory[one.at : one.at + one.length].clone().view(TYPES[one.dtype]).view(one.shape)
        for name, one in header.tensors.items()
    }
    shared = header.metadata.get(_STRUCTURE)
    if shared is None:
        return _commit(dict(tensors), store, origin)
    try:
        content = msgspec.json.decode(shared)
        values = {name: tree.unflatten(structure, tensors) for name, structure in content["values"].items()}
        names = dict(content["parameters"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"{file}: its {_STRUCTURE!r} metadata is none that closeranks writes: {error!r}") from error
    return _commit(values, store, origin, names)


def _commit(state: dict[Any, Any], text: str, origin: Origin, names: dict[str, Any] | None = None) -> Imported:
    """A whole save by this process alone. A writer that is at work in the store keeps its term."""
    if any(isinstance(value, torch.Tensor) for value in state.values()):
        state = {origin.under: state}
    captured = capture({str(name): value for name, value in state.items()}, {}, 0, 1)
    if names:
        captured.shared["parameters"] = names
    store, arena = open_store(text), Arena.create("import")
    try:
        found(store, origin.job, make=True, now_wall_s=time.time())
        probe(store)
        copy_into(captured, arena, origin.step)
        log = CommitLog(store)
        term = log.refresh().term or log.claim(f"{socket.gethostname()}/{os.getpid()} (import)")
        return _written(store, log, term, (arena, origin.step, len(captured.leaves)))
    finally:
        arena.close()
        store.close()


def _written(store: Store, log: CommitLog, term: int, image: tuple[Arena, int, int]) -> Imported:
    arena, step, tensors = image
    attempt = attempt_name(term, step, secrets.token_hex(4))
    filled = arena.filled()
    if filled is None:
        raise SaveFailed("the image was not finished")
    written = write_shard(store, attempt, 0, filled, Options())
    manifest = Manifest(
        attempt=attempt,
        step=step,
        world=1,
        layout="replicated",
        shards=(publish_index(store, written.index),),
        saved_wall_s=time.time(),
        versions={"torch": str(torch.__version__)},
    )
    return Imported(log.commit(term, manifest), step, tensors, written.written_bytes)
