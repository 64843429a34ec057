import json

import pytest
import torch
from tests.checkpoint.stored import Stored
from torch import nn
from typer.testing import CliRunner

from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.cli.main import app_for


def ckpt(*arguments):
    arguments = ["ckpt", *map(str, arguments)]
    return CliRunner().invoke(app_for(arguments), arguments)


def in_json(*arguments):
    result = ckpt(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    state = nn.Linear(6, 4).state_dict()
    torch.save(state, tmp_path / "weights.pt")
    return state


@pytest.mark.parametrize("out", ["model.safetensors", "dcp"])
def test_weights_come_in_go_out_and_come_in_again_bit_for_bit(tmp_path, weights, out):
    store = tmp_path / "store"
    first = in_json("import", store, tmp_path / "weights.pt", "--step", 30, "--job", "mine")
    assert (first["format"], first["step"], first["tensors"]) == ("torch", 30, 2)
    done = in_json("export", store, "step:30", tmp_path / out)
    assert (done["format"], done["tensors"]) == ("safetensors" if "." in out else "dcp", 2)
    again = in_json("import", store, tmp_path / out, "--step", 30, "--job", "mine")
    found = in_json("diff", store, first["generation"], again["generation"])
    assert (found["changed"], found["only_first"], found["only_second"]) == ([], [], [])
    assert found["equal"] == len(weights)


def test_what_exists_is_left_alone(tmp_path, weights):
    store = tmp_path / "store"
    ckpt("import", store, tmp_path / "weights.pt")
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    result = ckpt("export", store, "newest", tmp_path / "model.safetensors")
    assert (result.exit_code, "is left alone" in result.stderr) == (2, True)
    assert (tmp_path / "model.safetensors").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "{store}", "newest", "{here}/absent/model.safetensors"], "/absent does not exist; make it first"),
        (["export", "{store}", "newest", "{here}/m.pt", "--format", "torch"], "it is a pickle; use safetensors or dcp"),
        (["export", "{store}", "99", "{here}/m.safetensors"], "generation 99 is not there"),
        (["import", "{store}", "{here}/absent"], "no such file or folder"),
        (["import", "{store}", "{here}"], "got a folder without .metadata"),
        (["import", "{store}", "{here}/hostile.pt"], "only be loaded by running code"),
        (["import", "{store}", "{here}/weights.pt", "--job", "another"], "expected the store of job 'another'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_way_out(tmp_path, weights, arguments, message):
    store = tmp_path / "store"
    Stored(DirectoryStore(store)).save(10)
    torch.save(nn.Linear(2, 2), tmp_path / "hostile.pt")
    result = ckpt(*(one.format(store=store, here=tmp_path) for one in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
