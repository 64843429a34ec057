from __future__ import annotations

import os
import random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from closeranks.train import tree
from closeranks.train.digest import digest
from closeranks.train.protected import Protected
from closeranks.train.randomness import Randomness, derive, seed_everything
from closeranks.train.seat_page import SeatPage, SeatStateMissing
from closeranks.train.setup_record import Recorder, Replayer, SetupDiverged, read
from closeranks.train.tree import NotProtectable
from closeranks.train.undo import UndoArea

scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=5)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(trees)
def test_nested_state_survives_bit_for_bit(value: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    again = tree.unflatten(tree.flatten("x", value, tensors), tensors)
    assert repr(again) == repr(value)


def test_arrays_and_tensors_survive() -> None:
    value = {"a": np.arange(6).reshape(2, 3), "t": torch.ones(2, dtype=torch.bfloat16), "scalar": np.float64(0.5)}
    tensors: dict[str, torch.Tensor] = {}
    again = tree.unflatten(tree.flatten("x", value, tensors), tensors)
    assert np.array_equal(again["a"], value["a"])
    assert torch.equal(again["t"], value["t"])
    assert again["scalar"] == 0.5


NO_STATE = [object(), {1, 2}, lambda: 0, b"x", 1j, "\ud800", np.longdouble(1), np.datetime64("2026-01-01")]
NO_NUMBERS = [np.array([object()]), np.array(["text"]), np.array([1], ">i4"), torch.empty(1, device="meta")]


@pytest.mark.parametrize("leaf", [*NO_STATE, *NO_NUMBERS])
def test_a_leaf_that_cannot_be_kept_is_refused_by_its_path(leaf: object) -> None:
    with pytest.raises(NotProtectable, match=r"^sched/inner/1: expected"):
        tree.flatten("sched", {"inner": [0, leaf]}, {})


def test_leaves_are_named_by_their_path_and_equal_paths_are_told_apart() -> None:
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    tensors: dict[str, torch.Tensor] = {}
    value = {"state": {0: {"exp_avg": one}}, "a/b": two, "a": {"b": three}}
    again = tree.unflatten(tree.flatten("opt", value, tensors), tensors)
    assert list(tensors) == ["opt/state/0/exp_avg", "opt/a/b", "opt/a/b~2"]
    assert again["a/b"] is two
    assert again["a"]["b"] is three


def test_the_state_of_a_numpy_generator_survives_json() -> None:
    state = np.random.default_rng(7).bit_generator.state
    text = msgspec.json.encode(tree.flatten("rng", state, {}))
    assert tree.unflatten(msgspec.json.decode(text), {}) == state


def test_an_object_without_state_is_refused_by_name_and_not_registered() -> None:
    protected = Protected()
    with pytest.raises(NotProtectable, match="data"):
        protected.add("data", iter([1]))
    assert not protected.others


def test_digests_tell_a_single_bit_the_sign_of_zero_and_the_type_apart() -> None:
    one = torch.zeros(8)
    flipped = one.clone()
    flipped.view(torch.uint8)[5] ^= 1
    assert len({digest([("w", t)], 0) for t in (one, flipped, -one, one.double(), one.view(2, 4))}) == 5


def model_and_optimizer(seed: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(dtype)
    model[0].bias.requires_grad_(requires_grad=False)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    dtype = next(model.parameters()).dtype
    model(torch.randn(5, 3, dtype=dtype)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replicated_state_moves_to_a_fresh_process_bit_for_bit(dtype: torch.dtype) -> None:
    model, optimizer = model_and_optimizer(0, dtype)
    update(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.05
    donor, newcomer = Protected(), Protected()
    donor.add("model", model)
    donor.add("optimizer", optimizer)
    fresh, fresh_optimizer = model_and_optimizer(1, dtype)
    newcomer.add("model", fresh)
    newcomer.add("optimizer", fresh_optimizer)
    named, structure = donor.capture()
    newcomer.restore({name: t.clone() for name, t in named}, structure)
    assert newcomer.digest() == donor.digest()
    assert fresh_optimizer.param_groups[0]["lr"] == 0.05
    update(model, optimizer)
    torch.manual_seed(0)
    assert fresh[0].bias.grad is None


def test_a_state_without_moments_clears_the_moments_of_a_rehearsal() -> None:
    model, optimizer = model_and_optimizer(0)
    protected = Protected()
    protected.add("optimizer", optimizer)
    named, structure = protected.capture()
    update(model, optimizer)
    assert optimizer.state
    protected.restore(dict(named), structure)
    assert not optimizer.state


def test_undo_puts_buffers_scheduler_hyperparameters_and_random_state_back() -> None:
    model, optimizer = model_and_optimizer(0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    protected, randomness = Protected(), Randomness(0, managed=False)
    for name, value in {"model": model, "optimizer": optimizer, "scheduler": scheduler}.items():
        protected.add(name, value)
    undo = UndoArea(protected, randomness)
    undo.take()
    before = (model[1].running_mean.clone(), optimizer.param_groups[0]["lr"], scheduler.last_epoch)
    draws = (torch.rand(1), random.random(), np.random.rand())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.param_groups[0]["lr"] = 0.7
    scheduler.last_epoch = 9
    undo.restore()
    assert torch.equal(model[1].running_mean, before[0])
    assert (optimizer.param_groups[0]["lr"], scheduler.last_epoch) == before[1:]
    assert model[0].weight.grad is None
    assert (torch.rand(1), random.random(), np.random.rand()) == draws


def test_equal_parts_give_equal_seeds_and_other_parts_others() -> None:
    seeds = {derive(seed, step, seat) for seed in range(3) for step in range(20) for seat in range(8)}
    assert len(seeds) == 3 * 20 * 8
    seed_everything(derive(1, 2, 3))
    drawn = (float(torch.rand(1)), random.random(), float(np.random.rand()))
    seed_everything(derive(1, 2, 3))
    assert drawn == (float(torch.rand(1)), random.random(), float(np.random.rand()))


class Position:
    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def seat(fd: int, *, managed: bool = True) -> tuple[nn.Module, Position, SeatPage]:
    model, _ = model_and_optimizer(0)
    position, protected = Position(), Protected()
    protected.add("model", model)
    protected.add("loader", position, local=True)
    return model, position, SeatPage(fd, protected, Randomness(0, managed=managed))


@pytest.mark.parametrize("managed", [True, False])
def test_a_successor_inherits_either_of_the_two_newest_steps(managed: bool) -> None:
    fd = os.memfd_create("page")
    model, position, page = seat(fd, managed=managed)
    means, draws = {}, {}
    for step in range(3):
        model(torch.randn(5, 3))
        position.at = 10 * step
        page.write(step)
        means[step] = model[1].running_mean.clone()
        state = Randomness(0, managed=False).capture()
        draws[step] = torch.rand(1)
        Randomness(0, managed=False).restore(state)
    for step in (1, 2):
        heir, loader, inherited = seat(fd, managed=managed)
        inherited.inherit(step)
        assert torch.equal(heir[1].running_mean, means[step])
        assert loader.at == 10 * step
        assert managed or torch.equal(torch.rand(1), draws[step])
    with pytest.raises(SeatStateMissing, match="step 0"):
        inherited.inherit(0)


def test_a_page_torn_in_the_middle_of_a_write_still_holds_the_step_before() -> None:
    fd = os.memfd_create("page")
    model, _, page = seat(fd)
    page.write(0)
    model(torch.randn(5, 3))
    page.write(1)
    page._mark(page._active, -2, 0)  # what a death during the write of step 1 leaves
    heir, _, inherited = seat(fd)
    inherited.inherit(0)
    with pytest.raises(SeatStateMissing):
        inherited.inherit(1)
    assert heir[1].num_batches_tracked == 0


@pytest.mark.parametrize("junk", [b"", b"x" * 100, b"crpage01" + b"\xff" * 4088])
def test_a_page_of_junk_is_no_page(junk: bytes) -> None:
    fd = os.memfd_create("page")
    os.write(fd, junk)
    with pytest.raises(SeatStateMissing):
        seat(fd)[2].inherit(3)


def test_recorded_results_are_replayed_in_order_and_a_diverging_call_is_named() -> None:
    fd = os.memfd_create("setup")
    recorder = Recorder()
    for value in (3.0, 4.0):
        recorder.fill(recorder.begin("broadcast 0 f32"), [torch.full((2,), value)])
    recorder.write(fd)
    replayer = read(fd)
    assert isinstance(replayer, Replayer)
    out = torch.zeros(2)
    replayer.answer("broadcast 0 f32", [out])
    assert out.tolist() == [3.0, 3.0]
    with pytest.raises(SetupDiverged, match="set-up collective 2 is 'barrier 0 '"):
        replayer.answer("barrier 0 ", [])


def test_a_record_past_the_bound_is_incomplete_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeranks.train.setup_record.MAX_RECORD_BYTES", 7)
    fd, recorder = os.memfd_create("setup"), Recorder()
    recorder.fill(recorder.begin("broadcast"), [torch.zeros(2)])
    recorder.write(fd)
    assert not recorder.complete
    assert read(fd) is None
