"""Checkpoints to and from other formats, and files that want to run code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoint.test_capture import state_bits, trained
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

import closeranks.checkpoint as ck
from closeranks.checkpoint.problems import Damaged, NothingToRestore, StoreRefused
from closeranks.train.exchange import (
    Origin,
    export_dcp,
    export_safetensors,
    import_dcp,
    import_safetensors,
    import_torch,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")


def both() -> tuple[dict[str, Any], Any]:
    model, optimizer = trained()
    return {"model": model, "optimizer": optimizer}, state_bits(model, optimizer)


def loaded(store: str) -> Any:
    model, optimizer = trained(1, 0)
    ck.load(store, {"model": model, "optimizer": optimizer})
    return state_bits(model, optimizer)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With one generation, of which everything is known."""
    folder = str(tmp_path_factory.mktemp("exchange") / "store")
    with ck.Checkpointer(folder) as checkpointer:
        checkpointer.save(both()[0], step=5)
    return folder


@pytest.mark.process
def test_a_generation_is_one_safetensors_file_that_comes_back_as_it_was(store: str, tmp_path: Path) -> None:
    state, bits = both()
    exported = export_safetensors(store, tmp_path / "out.safetensors")
    tensors = load_file(tmp_path / "out.safetensors")
    assert torch.equal(tensors["model/0.weight"], state["model"][0].weight)
    assert (exported.step, exported.tensors) == (5, len(tensors))
    import_safetensors(tmp_path / "out.safetensors", str(tmp_path / "new"))
    assert loaded(str(tmp_path / "new")) == bits


@pytest.mark.process
def test_a_generation_is_a_dcp_checkpoint_that_torch_loads_and_that_comes_back(store: str, tmp_path: Path) -> None:
    state, bits = both()
    export_dcp(store, tmp_path / "dcp")
    fresh, _ = trained(1)
    target = {"model": fresh.state_dict()}
    dcp.load(target, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert state_bits(fresh) == state_bits(state["model"])
    import_dcp(tmp_path / "dcp", str(tmp_path / "new"))
    assert loaded(str(tmp_path / "new")) == bits


def test_what_torch_saved_with_dcp_is_imported_with_its_optimizer(tmp_path: Path) -> None:
    state, bits = both()
    theirs = {
        "model": get_model_state_dict(state["model"]),
        "optimizer": get_optimizer_state_dict(state["model"], state["optimizer"]),
    }
    dcp.save(theirs, checkpoint_id=tmp_path / "dcp", no_dist=True)
    imported = import_dcp(tmp_path / "dcp", str(tmp_path / "store"), Origin(step=9))
    assert imported.step == 9
    assert loaded(str(tmp_path / "store")) == bits


def test_a_bare_state_dict_is_imported_as_the_model(tmp_path: Path) -> None:
    model, _ = trained()
    torch.save(model.state_dict(), tmp_path / "m.pt")
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "dcp", no_dist=True)
    for number, (call, file) in enumerate(
        [(import_torch, "m.pt"), (import_safetensors, "m.safetensors"), (import_dcp, "dcp")]
    ):
        call(tmp_path / file, str(tmp_path / f"store{number}"))
        fresh, _ = trained(1)
        ck.load(str(tmp_path / f"store{number}"), {"model": fresh})
        assert state_bits(fresh) == state_bits(model)


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_metadata_that_wants_to_run_code_is_refused_by_name_and_runs_nothing(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    mark = tmp_path / "ran"
    (tmp_path / "dcp/.metadata").write_bytes(pickle.dumps(Metadata({}, planner_data=Hostile(mark))))
    with pytest.raises(StoreRefused, match=r"names posix\.mkdir, which has no place in the metadata"):
        import_dcp(tmp_path / "dcp", str(tmp_path / "store"))
    assert not mark.exists()
    assert not (tmp_path / "store").exists()


def test_objects_in_dcp_and_torch_files_that_want_to_run_code_are_refused_by_name(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    dcp.save({"model": {"a": torch.ones(2)}, "odd": Hostile(mark)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with pytest.raises(StoreRefused, match="odd can only be loaded by running code"):
        import_dcp(tmp_path / "dcp", str(tmp_path / "store"))
    torch.save({"a": torch.ones(1), "odd": Hostile(mark)}, tmp_path / "x.pt")
    with pytest.raises(StoreRefused, match="can only be loaded by running code"):
        import_torch(tmp_path / "x.pt", str(tmp_path / "store"))
    assert not mark.exists()


def test_metadata_cannot_reach_into_our_own_classes(tmp_path: Path) -> None:
    # GLOBAL Metadata, then BUILD with slot state: sets attributes on the class itself where it is the real one.
    data = b"ctorch.distributed.checkpoint.metadata\nMetadata\n" + b"(N}X\x08\x00\x00\x00__hash__Nstb."
    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / ".metadata").write_bytes(data)
    with pytest.raises(Damaged):
        import_dcp(folder, str(tmp_path / "store"))
    assert Metadata.__init__ is not None
    assert vars(Metadata).get("__hash__") is None  # as the dataclass made it


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname"])
def test_a_dcp_file_outside_of_its_folder_is_not_read(tmp_path: Path, name: str) -> None:
    dcp.save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    metadata = pickle.loads((tmp_path / "dcp/.metadata").read_bytes())  # noqa: S301 - written a line above
    for info in metadata.storage_data.values():
        info.relative_path = name
    (tmp_path / "dcp/.metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(StoreRefused, match="outside of the checkpoint's folder"):
        import_dcp(tmp_path / "dcp", str(tmp_path / "store"))


def test_a_dcp_checkpoint_with_a_missing_or_short_file_is_refused(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(2), "b": torch.ones(3)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    (file,) = (tmp_path / "dcp").glob("*.distcp")
    os.truncate(file, file.stat().st_size - 10)
    with pytest.raises(Damaged, match=r"b: expected \d+ bytes, got \d+"):
        import_dcp(tmp_path / "dcp", str(tmp_path / "store"))
    file.unlink()
    with pytest.raises(Damaged, match="No such file"):
        import_dcp(tmp_path / "dcp", str(tmp_path / "store"))


@pytest.mark.parametrize("junk", [b"", b"junk", pickle.dumps([1]), pickle.dumps({"a": 1})])
def test_junk_is_no_metadata(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(junk)
    with pytest.raises(Damaged, match="not the metadata"):
        import_dcp(tmp_path, str(tmp_path / "store"))


def test_a_safetensors_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4)}, tmp_path / "m.safetensors")
    os.truncate(tmp_path / "m.safetensors", (tmp_path / "m.safetensors").stat().st_size - 1)
    with pytest.raises(Damaged, match=r"expected \d+ bytes, got \d+"):
        import_safetensors(tmp_path / "m.safetensors", str(tmp_path / "store"))


@pytest.mark.process
def test_an_export_takes_no_ones_place_and_leaves_nothing_when_it_fails(store: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(FileExistsError):
        export_safetensors(store, tmp_path / "taken")
    (image,) = Path(store).rglob("w00000.safetensors")
    data = bytearray(image.read_bytes())
    data[-1] ^= 1
    image.chmod(0o600)
    image.write_bytes(data)
    try:
        with pytest.raises(NothingToRestore, match=r"expected (xxh3|blake3)"):
            export_dcp(store, tmp_path / "out")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["taken"]
    finally:
        data[-1] ^= 1
        image.write_bytes(data)


def test_import_beside_a_running_writer_does_not_fence_it(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    save_file({"a": torch.ones(4)}, tmp_path / "m.safetensors")
    with ck.Checkpointer(store) as checkpointer:
        checkpointer.save({"model": nn.Linear(1, 1)}, step=0)
        import_safetensors(tmp_path / "m.safetensors", store)
        checkpointer.save({"model": nn.Linear(1, 1)}, step=1)
