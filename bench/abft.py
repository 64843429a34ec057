"""Checksummed matrix products: rounding that limits must allow for, and which flipped bits they find.

For every type the largest residual of products without a fault is measured over shapes and seeds, in units of its
roundoff over the 2-norm of the column. Then single bits of single elements of products are flipped.
"""

from __future__ import annotations

import torch
from _common import Bench, at_most

from closeranks.detect.abft import FACTOR, ROUNDOFF
from closeranks.train.checked import wrong_columns

SHAPES = ((64, 64, 64), (256, 128, 256), (128, 1024, 128), (512, 512, 512))
TYPES = {"float32": (torch.float32, torch.int32, 32), "bfloat16": (torch.bfloat16, torch.int16, 16)}
TYPES |= {"float16": (torch.float16, torch.int16, 16)}


def product(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, ...]:
    """Two random matrices of this type and what the device makes of them."""
    draw = torch.Generator().manual_seed(seed)
    rows, inner, columns = shape
    a = torch.randn(rows, inner, generator=draw).to(dtype)
    b = (torch.randn(inner, columns, generator=draw) / inner**0.5).to(dtype)
    return a, b, a @ b


def residual(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    """The largest difference of two checksums, over the 2-norm of its column."""
    told, expected = c.sum(0, dtype=torch.float32), a.sum(0, dtype=torch.float32) @ b.float()
    return float(((told - expected).abs() / torch.linalg.vector_norm(c, dim=0, dtype=torch.float32)).max())


def recall(name: str, bit: int, flips: int) -> float:
    """Share of flips of this bit, in random elements, after which a column fails."""
    dtype, words, bits = TYPES[name]
    draw = torch.Generator().manual_seed(bit)
    mask = (-(2 ** (bits - 1))) if bit == bits - 1 else 1 << bit
    found = 0
    a, b, clean = product((256, 128, 256), dtype, bit)
    for _ in range(flips):
        c = clean.clone()
        row, column = (int(torch.randint(256, (), generator=draw)) for _ in range(2))
        c.view(words)[row, column] ^= mask
        found += wrong_columns(a, b, c) > 0
    return found / flips


def main() -> int:
    """Run it."""
    bench = Bench("abft", __doc__)
    torch.set_num_threads(1)
    seeds, flips = (5, 25) if bench.options.quick else (40, 200)
    bars = []
    for name, (dtype, _, bits) in TYPES.items():
        worst = max(residual(*product(shape, dtype, seed)) for shape in SHAPES for seed in range(seeds))
        worst /= ROUNDOFF[name]
        bench.say(f"{name}: largest residual without a fault {worst:.2f} u, limit {FACTOR[name]:g} u")
        rates = {bit: recall(name, bit, flips) for bit in range(bits)}
        bench.say("  found, by bit: " + ", ".join(f"{bit}: {rate:.0%}" for bit, rate in rates.items()))
        bars.append(at_most(f"{name}: largest residual over its limit", worst / FACTOR[name], 1.0))
    return bench.finish(bars)


if __name__ == "__main__":
    raise SystemExit(main())
