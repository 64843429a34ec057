"""Saving and loading live objects, without a store: what is named, what is copied, what is refused."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.through_arena import names, save
from torch import nn
from torch.nn.parallel import DataParallel
from torch.testing._internal.two_tensor import TwoTensor

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.problems import Mismatch
from closeranks.train.boxes import TYPES, Sharding, bytes_of, placed_runs, share_of
from closeranks.train.capture import capture, copy_into
from closeranks.train.host_memory import PinnedMemory
from closeranks.train.restore_parts import equal_bits
from closeranks.train.tree import NotProtectable


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def trained(seed: int = 0, steps: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network(seed)
    model[2].requires_grad_(requires_grad=False)
    groups = [
        {"params": list(model[0].parameters()), "lr": 0.1, "tag": "body", "schedule": [1, 2.5]},
        {"params": list(model[2].parameters()), "lr": 0.0, "tag": "frozen", "weight_decay": 0.3},
    ]
    optimizer = torch.optim.AdamW(groups)
    for _ in range(steps):
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def bits(value: Any) -> Any:
    """Something to compare states by, bit for bit."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().reshape(-1).view(torch.uint8).tolist()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value


def state_bits(*objects: Any) -> Any:
    return bits([one.state_dict() for one in objects])


# --- what comes back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("fresh_steps", [0, 1])
def test_a_model_and_its_optimizer_come_back_bit_for_bit_frozen_groups_included(world: int, fresh_steps: int) -> None:
    model, optimizer = trained()
    kept = save({"model": model, "optimizer": optimizer}, world)
    fresh, fresh_optimizer = trained(1, fresh_steps)
    fresh_optimizer.param_groups[1]["left over"] = 1
    kept.load({"model": fresh, "optimizer": fresh_optimizer})
    assert state_bits(fresh, fresh_optimizer) == state_bits(model, optimizer)
    assert fresh_optimizer.param_groups[1]["tag"] == "frozen"
    assert fresh_optimizer.param_groups[0]["params"][0] is fresh[0].weight


@pytest.mark.parametrize("dtype", TYPES.values(), ids=str)
def test_every_type_of_element_survives_in_any_form(dtype: torch.dtype) -> None:
    raw = torch.arange(24 * dtype.itemsize, dtype=torch.uint8)
    raw = raw % 2 if dtype is torch.bool else raw
    base = raw.view(dtype).reshape(4, 6)
    value = {"t": base.t(), "sliced": base[1:3, ::2], "zero_dim": base[1, 2].clone(), "empty": base[:0], "whole": base}
    kept = save(value)
    loaded = {key: torch.zeros_like(one) for key, one in value.items()}
    kept.load(loaded)
    assert all(equal_bits(loaded[key], value[key].contiguous()) for key in value)


def test_complex_tensors_with_a_conjugate_bit_are_saved_as_what_they_mean() -> None:
    value = torch.tensor([1 + 2j]).conj()
    kept, loaded = save({"x": value}), {"x": torch.zeros(1, dtype=torch.complex64)}
    kept.load(loaded)
    assert loaded["x"].tolist() == [1 - 2j]


def test_a_subclass_with_ideas_of_its_own_is_saved_as_its_elements() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.Tensor.detach, torch.Tensor.copy_):
                raise AssertionError("not to be asked")
            return super().__torch_function__(func, types, args, kwargs)

    kept, loaded = save({"x": torch.arange(3.0).as_subclass(Loud)}), {"x": torch.zeros(3)}
    kept.load(loaded)
    assert loaded["x"].tolist() == [0, 1, 2]


def test_tied_tensors_are_saved_once_and_stay_tied() -> None:
    model, other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    other[1].weight = other[0].weight
    captured = capture({"model": model}, {}, 0, 1)
    assert names([captured]) == ["model/0.weight", "model/0.bias", "model/1.bias"]
    save({"model": model}).load({"model": other})
    assert other[1].weight is other[0].weight
    assert equal_bits(other[0].weight, model[0].weight)


def test_what_was_tied_loads_into_what_is_not_and_the_other_way_only_if_the_values_are_equal() -> None:
    tied, apart = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(Mismatch, match=r"model/1\.weight is tied to model/0\.weight here"):
        save({"model": apart}).load({"model": tied})
    save({"model": tied}).load({"model": apart})
    assert equal_bits(apart[1].weight, tied[0].weight)
    save({"model": apart}).load({"model": tied})


def test_wrappers_leave_no_trace_in_names() -> None:
    model = network()
    wrapped = DataParallel(torch.compile(model, backend="eager"))
    assert names([capture({"m": wrapped}, {}, 0, 1)]) == names([capture({"m": model}, {}, 0, 1)])
    fresh = network(1)
    save({"m": wrapped}).load({"m": fresh})
    assert state_bits(fresh) == state_bits(model)


def test_nested_data_comes_back_in_the_same_containers() -> None:
    value = {"position": {"epoch": 3, "seen": [1, 2]}, "frontier": np.arange(4), "scale": torch.tensor(2.0), "f": 0.1}
    kept = save({"extra": value, "step": 12})
    live: dict[str, Any] = {
        "position": {"epoch": 0, "seen": []}, "frontier": np.zeros(4, np.int64), "scale": torch.tensor(0.0), "f": 0,
    }  # fmt: skip
    seen, frontier, scale = live["position"]["seen"], live["frontier"], live["scale"]
    incoming = kept.load({"extra": live, "step": 0})
    assert incoming.values["step"] == 12
    assert incoming.values["extra"] is live
    assert live["position"] == value["position"]
    assert seen == [1, 2]
    assert (frontier == value["frontier"]).all()
    assert float(scale) == 2.0
    assert live["scale"] is scale


def test_an_empty_dict_takes_whatever_there_is() -> None:
    live: dict[str, Any] = {}
    save({"extra": {"a": torch.ones(2), "b": [1]}}).load({"extra": live})
    assert live["a"].tolist() == [1, 1]
    assert live["b"] == [1]


class Extra(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def get_extra_state(self) -> Any:
        return self.value

    def set_extra_state(self, state: Any) -> None:
        self.value = state


def test_extra_state_of_modules_is_kept() -> None:
    model, fresh = nn.Sequential(Extra({"amax": torch.ones(3), "n": 2})), nn.Sequential(Extra({}))
    save({"m": model}).load({"m": fresh})
    assert bits(fresh[0].value) == bits(model[0].value)


def test_parameters_that_come_in_another_order_get_their_own_moments() -> None:
    model, _ = trained(steps=0)
    optimizer = torch.optim.Adam([model[0].weight, model[2].weight])
    for parameter, value in ((model[0].weight, 1.0), (model[2].weight, 2.0)):
        optimizer.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": torch.full_like(parameter, value)}
    fresh, _ = trained(1, steps=0)
    other = torch.optim.Adam([fresh[2].weight, fresh[0].weight])
    save({"model": model, "optimizer": optimizer}).load({"model": fresh, "optimizer": other})
    assert other.state[fresh[0].weight]["exp_avg"].unique().tolist() == [1.0]
    assert other.state[fresh[2].weight]["exp_avg"].unique().tolist() == [2.0]


def test_moments_keep_their_type_when_they_differ_from_the_parameters() -> None:
    model = nn.Linear(3, 2, dtype=torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.state[model.weight] = {"step": torch.tensor(1.0), "exp_avg": torch.full((2, 3), 1 / 3)}
    fresh = nn.Linear(3, 2, dtype=torch.bfloat16)
    other = torch.optim.Adam(fresh.parameters())
    save({"m": model, "o": optimizer}).load({"m": fresh, "o": other})
    assert equal_bits(other.state[fresh.weight]["exp_avg"], torch.full((2, 3), 1 / 3))


# --- seats ------------------------------------------------------------------------------------------------------


def seats(count: int) -> Any:
    """A save by ranks whose statistics and loaders differ."""
    captured, models = [], []
    for seat in range(count):
        model = network()
        model[1].running_mean.fill_(seat)
        models.append(model)
        captured.append(capture({"model": model}, {"loader": {"at": 10 * seat}}, seat, count))
    return captured, models


@pytest.mark.parametrize(("readers", "taken"), [(3, [0, 1, 2]), (5, [0, 1, 2, 0, 1]), (2, [0, 1])])
def test_each_seat_gets_its_own_buffers_and_local_state_and_extra_seats_those_of_k_mod_n(
    readers: int, taken: list[int]
) -> None:
    from tests.checkpoint.through_arena import Save

    kept = Save(seats(3)[0])
    for seat in range(readers):
        model, local = network(1), {"loader": {"at": -1}}
        kept.load({"model": model}, local, seat)
        assert model[1].running_mean.unique().tolist() == [taken[seat]]
        assert local["loader"]["at"] == 10 * taken[seat]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2**17)), min_size=1, max_size=6), st.integers(1, 5))
def test_every_row_of_replicated_tensors_has_exactly_one_writer(shapes: list[tuple[int, int]], world: int) -> None:
    tensors = {f"t{i}": torch.empty(1, dtype=torch.float32).expand(shape) for i, shape in enumerate(shapes)}
    from closeranks.train.boxes import boxes_of

    boxes = [box for name, tensor in tensors.items() for box in boxes_of(name, tensor)]
    shares = [share_of(boxes, writer, world) for writer in range(world)]
    for box in boxes:
        rows = sorted(
            (part.leaf.offsets[0], part.leaf.shape[0])
            for share in shares
            for part in share
            if part.leaf.name == box.leaf.name
        )
        assert sum(count for _, count in rows) == box.leaf.shape[0]
        assert all(a + n == b for (a, n), (b, _) in itertools.pairwise(rows))
    total = sum(bytes_of(box.leaf) for box in boxes)
    worst = max(sum(bytes_of(part.leaf) for part in share) for share in shares)
    assert worst <= total / world + 2 * 2**20


@given(st.integers(0, 40), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=3), st.data())
def test_runs_are_what_torch_cuts(size: int, cuts: list[tuple[int, int]], data: Any) -> None:
    from torch.distributed.tensor.placement_types import Shard, _StridedShard

    indices, sharding = torch.arange(size), []
    for parts, strides in cuts:
        part = data.draw(st.integers(0, parts - 1))
        sharding.append(Sharding(0, parts, part, strides))
        placement = Shard(0) if strides == 1 else _StridedShard(0, split_factor=strides)
        indices = placement._split_tensor(indices, parts, with_padding=False)[0][part]
    mine = [i for begin, length in placed_runs(size, sharding) for i in range(begin, begin + length)]
    assert mine == indices.tolist()


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: torch.empty(2, device="meta"), "meta device"),
        (lambda: torch.eye(2).to_sparse(), "dense tensor"),
        (lambda: torch.zeros(2, dtype=torch.complex128), "elements of one of"),
        # Made in the test and not while tests are collected: its first use imports half of torch.
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "dense tensor"),
    ],
)
def test_a_tensor_that_cannot_be_saved_is_refused_by_name_with_the_reason(
    made: Callable[[], torch.Tensor], why: str
) -> None:
    with pytest.raises(NotProtectable, match=rf"^x/w: expected .*{why}"):
        capture({"x": {"w": made()}}, {}, 0, 1)


def test_missing_unexpected_and_different_are_reported_together_and_nothing_changes() -> None:
    model, optimizer = trained()
    kept = save({"model": model, "optimizer": optimizer, "ema": {"a": 1}})
    fresh = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(4).double(), nn.Linear(4, 2, bias=False), nn.Linear(1, 1))
    before = state_bits(fresh)
    with pytest.raises(Mismatch) as caught:
        kept.load({"model": fresh, "scaler": {"s": 1}})
    text = str(caught.value)
    for told in (
        "missing in it: scaler, model/3.weight, model/3.bias",
        "unexpected in it: optimizer, ema, model/2.bias",
        "model/0.weight: expected shape [5, 3], got [4, 3]",
        "model/1.running_mean: expected torch.float64, got torch.float32 (cast=True converts)",
        "Nothing was changed",
    ):
        assert told in text
    assert state_bits(fresh) == before


def test_what_both_have_is_loaded_when_asked_for_and_the_rest_is_noted() -> None:
    model, _ = trained()
    fresh = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Linear(1, 1))
    incoming = save({"model": model, "ema": {"a": 1}}).load({"model": fresh}, strict=False)
    assert incoming.notes == ["missing in it: model/3.weight, model/3.bias", "unexpected in it: ema"]
    assert equal_bits(fresh[2].weight, model[2].weight)


def test_types_are_converted_only_when_asked_for() -> None:
    model, fresh = nn.Linear(3, 2).double(), nn.Linear(3, 2, dtype=torch.bfloat16)
    kept = save({"m": model})
    with pytest.raises(Mismatch, match=r"expected torch\.bfloat16, got torch\.float64"):
        kept.load({"m": fresh})
    kept.load({"m": fresh}, cast=True)
    assert equal_bits(fresh.weight, model.weight.detach().to(torch.bfloat16))


class Stubborn:
    def __init__(self, value: int, *, refuses: bool = False) -> None:
        self.value, self.refuses = value, refuses

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.refuses and state["value"] == 5:
            self.value = -1
            raise ValueError("I like 5 not")
        self.value = state["value"]


def test_when_the_users_own_code_refuses_everything_is_as_it_was() -> None:
    model, optimizer = trained()
    kept = save({"model": model, "optimizer": optimizer, "a": Stubborn(4), "b": Stubborn(5)})
    fresh, fresh_optimizer = trained(1)
    a, b = Stubborn(1), Stubborn(2, refuses=True)
    before = state_bits(fresh, fresh_optimizer)
    with pytest.raises(Mismatch, match=r"b refused its state: ValueError\('I like 5 not'\)"):
        kept.load({"model": fresh, "optimizer": fresh_optimizer, "a": a, "b": b})
    assert state_bits(fresh, fresh_optimizer) == before
    assert (a.value, b.value) == (1, 2)


def test_an_optimizer_with_other_groups_is_refused_with_what_differs() -> None:
    model, optimizer = trained()
    kept = save({"model": model, "optimizer": optimizer})
    fresh, _ = trained(1)
    with pytest.raises(Mismatch, match=r"optimizer: expected groups of \[6\] parameters, got groups of \[2, 2\]"):
        kept.load({"model": fresh, "optimizer": torch.optim.AdamW(fresh.parameters())})
    swapped = torch.optim.AdamW([{"params": list(fresh[2].parameters())}, {"params": list(fresh[0].parameters())}])
    with pytest.raises(Mismatch, match=r"optimizer: group 0 has other parameters: model/0\.bias"):
        kept.load({"model": fresh, "optimizer": swapped})


@pytest.mark.parametrize(
    "damage", [[], {"d": 3}, {"d": [["0.weight", {"t": "nothing"}]]}, {"d": [["0.weight", {"n": 3}]]}]
)
def test_a_structure_that_lies_is_refused_and_changes_nothing(damage: Any) -> None:
    kept = save({"model": network()})
    kept.filled[0].shared["values"]["model"] = damage
    fresh = network(1)
    before = state_bits(copy.deepcopy(fresh))
    with pytest.raises(Mismatch):
        kept.load({"model": fresh})
    assert state_bits(fresh) == before


def test_a_parameter_that_wraps_other_tensors_is_saved_by_its_parts_and_restored_in_place() -> None:
    def made(value: float) -> nn.Module:
        module = nn.Module()
        inner = TwoTensor(torch.full((2,), value), torch.full((2,), 10 * value))
        module.register_buffer("w", inner)
        return module

    model, fresh = made(3.0), made(0.0)
    assert names([capture({"m": model}, {}, 0, 1)]) == ["m/w/a", "m/w/b"]
    inner = fresh.w
    save({"m": model}).load({"m": fresh})
    assert fresh.w is inner
    assert (inner.a.tolist(), inner.b.tolist()) == ([3.0, 3.0], [30.0, 30.0])
    with pytest.raises(NotProtectable, match="a dense tensor, not a wrapper of others"):
        capture({"x": {"w": model.w}}, {}, 0, 1)


def test_an_arena_that_is_used_again_takes_another_layout_and_the_same_one_anew() -> None:
    arena = Arena.create("test")
    for state in ({"a": torch.ones(3)}, {"a": torch.full((3,), 2.0)}, {"a": torch.zeros(2**20), "b": torch.ones(1)}):
        copy_into(capture(state, {}, 0, 1), arena, 1)
        filled = arena.filled()
        assert filled is not None
        for part in filled.slices:
            data = bytes(filled.image[part.at : part.at + part.length])
            assert data == state[part.name].numpy().tobytes()


class Runtime:
    """Plays the part of CUDA's host memory calls."""

    def __init__(self, *, limit: int) -> None:
        self.limit, self.registered = limit, {}

    def cudaHostRegister(self, pointer: int, size: int, _flags: int) -> int:  # noqa: N802 - the name in CUDA
        assert pointer not in self.registered
        if size > self.limit:
            return 2
        self.registered[pointer] = size
        return 0

    def cudaHostUnregister(self, pointer: int) -> int:  # noqa: N802
        del self.registered[pointer]
        return 0


def test_memory_is_pinned_once_until_it_moves_or_grows_and_a_limit_is_no_failure() -> None:
    runtime = Runtime(limit=100)
    pinned, memory = PinnedMemory(runtime), torch.zeros(80, dtype=torch.uint8)
    assert pinned.cover(memory[:40])
    assert pinned.cover(memory[:20])
    assert list(runtime.registered.values()) == [40]
    assert pinned.cover(memory)
    assert list(runtime.registered.values()) == [80]
    assert not pinned.cover(torch.zeros(101, dtype=torch.uint8))
    assert runtime.registered == {}
