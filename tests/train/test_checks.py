"""Digests, checked products and robust averages on real tensors, in this process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from closeranks.detect import robust
from closeranks.train import bucket_hooks
from closeranks.train.checked import CheckedLinear, WrongProduct, check_products, checked_product, wrong_columns
from closeranks.train.digest import word_sum


def flipped(tensor: torch.Tensor, index: int, bit: int) -> torch.Tensor:
    after = tensor.clone()
    after.view(-1).view(torch.int32)[index] ^= -(2**31) if bit == 31 else 1 << bit
    return after


def test_every_single_flipped_bit_changes_the_word_sum() -> None:
    draw = np.random.default_rng(0)
    tensors = [
        torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n, shape in enumerate([20_000, 3, 17])
    ]
    clean = word_sum(tensors)
    for _ in range(300):
        which, bit = int(draw.integers(3)), int(draw.integers(32))
        after = list(tensors)
        after[which] = flipped(tensors[which], int(draw.integers(tensors[which].numel())), bit)
        assert word_sum(after) != clean


def test_the_word_sum_takes_any_type_shape_and_stride_and_is_never_zero() -> None:
    odd = torch.arange(33, dtype=torch.int8)[1:]
    assert word_sum([odd]) == word_sum([odd.clone()])
    assert word_sum([torch.randn(4, 6).t()]) != 0
    assert word_sum([]) == word_sum([torch.zeros(5, dtype=torch.bfloat16)]) == 1
    big = torch.randn(40_001)
    assert word_sum([big[1:]]) == word_sum([big[1:].clone()])  # not aligned to words


def harmful_and_masked(count: int = 400) -> tuple[int, int, int]:
    """Flips in weights before a step of Adam: state changed for good, found, and masked (the same state afterwards)."""
    draw = np.random.default_rng(1)
    start = torch.randn(64, generator=torch.Generator().manual_seed(1))
    gradient = torch.randn(64, generator=torch.Generator().manual_seed(2))
    gradient[::8] = 0.0

    def stepped(weight: torch.Tensor, slope: torch.Tensor) -> list[torch.Tensor]:
        parameter = nn.Parameter(weight.clone())
        optimizer = torch.optim.Adam([parameter], lr=1e-3)
        parameter.grad = slope.clone()
        optimizer.step()
        return [parameter.detach(), *(v for v in optimizer.state[parameter].values() if isinstance(v, torch.Tensor))]

    clean = stepped(start, gradient)
    harmful = found = masked = 0
    for n in range(count):
        index, bit = int(draw.integers(64)), int(draw.integers(32))
        weight, slope = (flipped(start, index, bit), gradient) if n % 2 else (start, flipped(gradient, index, bit))
        after = stepped(weight, slope)
        same = all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(after, clean, strict=True))
        masked += same
        harmful += not same
        found += not same and word_sum(after) != word_sum(clean)
    return harmful, found, masked


def test_every_flip_in_a_weight_or_gradient_that_changes_the_state_is_found_in_it() -> None:
    harmful, found, masked = harmful_and_masked()
    assert found == harmful > 0
    assert harmful + masked == 400
    assert masked < 20  # their share is in docs/numerics.md


def test_checked_layers_compute_what_plain_ones_do_forward_and_backward() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8, bias=False))
    checked = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8, bias=False))
    checked.load_state_dict(plain.state_dict())
    check_products(checked)
    x = torch.randn(5, 3, 24)
    for model in (plain, checked):
        model(x).square().sum().backward()
    assert isinstance(checked[2], CheckedLinear)
    assert torch.allclose(plain(x), checked(x))
    for a, b in zip(plain.parameters(), checked.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None and torch.allclose(a.grad, b.grad, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_wrong_element_is_seen_and_rounding_is_not(dtype: torch.dtype) -> None:
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        a, b = torch.randn(64, 48, generator=draw).to(dtype), torch.randn(48, 32, generator=draw).to(dtype)
        c = a @ b
        assert wrong_columns(a, b, c) == 0
        c[3, 5] += 64
        assert wrong_columns(a, b, c) == 1


class Liar(torch.Tensor):
    """Multiplies wrongly as often as it is told to."""

    lies = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = super().__torch_function__(func, types, args, kwargs or {})
        if cls.lies and func is torch.Tensor.matmul and args[0].dim() > 1:
            cls.lies -= 1
            result[0, 0] += 100
        return result


def test_a_wrong_product_is_computed_once_more_and_one_that_stays_wrong_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    lying = a.as_subclass(Liar)
    Liar.lies = 1
    assert torch.allclose(checked_product(lying, b).as_subclass(torch.Tensor), a @ b)
    assert "1 columns fail their checksum" in capsys.readouterr().err
    Liar.lies = 2
    with pytest.raises(WrongProduct, match="twice in a row"):
        checked_product(lying, b)


def test_a_layer_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'head' is no nn\.Linear of the module; there are 0"):
        check_products(nn.Sequential(nn.Linear(2, 2)), "head")


@pytest.mark.parametrize("ranks", [7, 8])
def test_the_averages_on_tensors_are_those_of_the_pure_ones(ranks: int) -> None:
    gradients = torch.randn(ranks, 30, generator=torch.Generator().manual_seed(3))
    gradients[2] *= -50
    array = gradients.numpy()
    assert np.allclose(bucket_hooks.trimmed_mean(gradients, 2).numpy(), robust.trimmed_mean(array, 2), atol=1e-6)
    assert bucket_hooks.krum(gradients, 1) == robust.krum(array, 1) != 2
