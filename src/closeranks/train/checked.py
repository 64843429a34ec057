"""Matrix products that are checked while they are used, forward and backward, and computed once more when wrong."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from closeranks.detect import abft


class WrongProduct(RuntimeError):
    """A matrix product came out wrong twice: this device cannot be trusted. Nothing was stored of it."""


def checked_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` for matrices, by checksums; a wrong product is computed once more.

    On an accelerator it waits for the product, to read whether it was right.

    Raises:
        WrongProduct: it was wrong again.
        ValueError: products of this type are not checked.
    """
    for attempt in (1, 2):
        product = a @ b
        wrong = wrong_columns(a, b, product)
        if wrong == 0:
            return product
        told = f"{tuple(a.shape)} x {tuple(b.shape)} of {a.dtype} on {a.device}: {wrong} columns fail their checksum"
        sys.stderr.write(f"closeranks: attempt {attempt} at a product {told}\n")
    raise WrongProduct(f"a product {told}, twice in a row; test this device before using it again")


def wrong_columns(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> int:
    """How many columns of ``c`` are not those of ``a @ b``; the sums are taken in the next wider type."""
    residual = checksum_difference(a, b, c)
    size = torch.linalg.vector_norm(c, dim=0, dtype=torch.float32)
    # One wild element makes the norm overflow, and anything is small beside that.
    within = (residual <= abft.limit(str(c.dtype).removeprefix("torch.")) * size) & size.isfinite()
    return c.shape[1] - int(within.sum())


def checksum_difference(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """By column: how far the sum of ``c`` is from the product of the column sums of ``a`` with ``b``."""
    wider = torch.float64 if c.dtype is torch.float32 else torch.float32
    return (c.sum(0, dtype=wider) - a.sum(0, dtype=wider) @ b.to(wider)).abs()


class _Checked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return checked_product(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        (gradient,) = outer
        x, weight = ctx.saved_tensors
        of_x = checked_product(gradient, weight) if ctx.needs_input_grad[0] else None
        of_weight = checked_product(gradient.t(), x) if ctx.needs_input_grad[1] else None
        return of_x, of_weight


class CheckedLinear(nn.Linear):
    """An ``nn.Linear`` whose three products are checked. Its state_dict is that of an ``nn.Linear``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output; raises what ``checked_product`` does."""
        product = _Checked.apply(x.reshape(-1, self.in_features), self.weight)  # type: ignore[no-untyped-call]
        output: torch.Tensor = product.view(*x.shape[:-1], self.out_features)
        bias: torch.Tensor | None = self.bias
        return output if bias is None else output + bias


def check_products(module: nn.Module, *names: str) -> None:
    """Make the named ``nn.Linear`` layers of a module (all of them without names) check their products, in place.

    Call it before the module is wrapped in DDP, compiled, or sharded.

    Raises:
        ValueError: a name is none of such a layer; names those that are. Nothing was changed.
    """
    layers = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    unknown = [name for name in names if name not in layers]
    if unknown:
        raise ValueError(f"check_products: {unknown[0]!r} is no nn.Linear of the module; there are {', '.join(layers)}")
    for name in names or layers:
        layers[name].__class__ = CheckedLinear
