"""Matrix products with a known answer: a device that multiplies wrongly is found before it trains.

The factors hold -1, 0 and 1, so every partial sum is a small integer, which all floating-point types from bfloat16 on
hold exactly: the answer is known bit for bit, whatever the order of the additions, and no threshold is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

Matrix = np.ndarray[Any, Any]
_EXACT = 256  # integers up to here are exact in bfloat16


class Products(msgspec.Struct, frozen=True, kw_only=True):
    """What a test of a device found."""

    products: int
    wrong: int  # elements that are not what they must be
    first: str  # the first of them, in words; "": none

    @property
    def passed(self) -> bool:
        """Whether every element was right."""
        return self.wrong == 0


def factors(size: int, seed: int) -> tuple[Matrix, Matrix]:
    """Two square matrices of -1, 0 and 1, as float32.

    Raises:
        ValueError: products of that size are not certain to be exact.
    """
    draw = np.random.default_rng(np.random.Philox(seed))
    density = min(1.0, _EXACT / (2 * size))  # no sum has more than _EXACT terms by far
    a, b = (
        draw.integers(-1, 2, (size, size)).astype(np.float32) * (draw.random((size, size)) < density) for _ in range(2)
    )
    if np.abs(a).sum(axis=1).max() > _EXACT:
        raise ValueError(f"products of size {size} are not certain to be exact; expected at most {_EXACT * 16}")
    return a, b


def try_products(multiply: Callable[[Matrix, Matrix], Matrix], sizes: tuple[int, ...], seed: int) -> Products:
    """Multiply with ``multiply`` (float32 in, float32 out, computed in any type between) and compare every element."""
    wrong, first = 0, ""
    for number, size in enumerate(sizes):
        a, b = factors(size, seed + number)
        known = a.astype(np.int32) @ b.astype(np.int32)
        found = multiply(a, b)
        bad = np.argwhere(found != known)
        if len(bad) and not first:
            row, column = map(int, bad[0])
            told = f"[{row}, {column}] is {found[row, column]:g}, must be {known[row, column]}"
            first = f"product {number} of size {size}: {told}"
        wrong += len(bad)
    return Products(products=len(sizes), wrong=wrong, first=first)
